#!lua flags=allow-oom
-- Extends the leases of many locks, each only if it is still its owner's.
--
-- KEYS[i]    a lock: a hash, owner -> holds
-- ARGV[1]    lease, ms
-- ARGV[i+1]  the owner of KEYS[i]
-- returns    for each lock 1: extended; 0: not this owner's
--
-- redis-cli --eval lock_renew.lua orders stock , 30000 me:1 me:1
local renewed = {}
local lease = tonumber(ARGV[1])
for i, lock in ipairs(KEYS) do
    -- pcall: a key of a wrong type is not ours and must not stop its neighbours' renewal.
    if redis.pcall('HEXISTS', lock, ARGV[i + 1]) == 1 then
        -- A longer lease of a nested hold stays.
        if redis.call('PTTL', lock) < lease then
            redis.call('PEXPIRE', lock, ARGV[1])
        end
        renewed[i] = 1
    else
        renewed[i] = 0
    end
end
return renewed
