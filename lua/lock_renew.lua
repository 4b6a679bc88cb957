#!lua flags=allow-oom
-- Renews the leases of many locks, each only if its owner still holds it.
--
-- KEYS[i]    a lock: a hash, owner -> number of levels of its hold
-- ARGV[1]    the lease, ms; 0: nothing is changed, the reply only says which locks are held
-- ARGV[i+1]  the owner of KEYS[i]
-- returns    for each lock 1: held, and renewed; 0: this owner doesn't hold it
--
-- Idempotent: a lease is only ever extended to the stated length.
--
-- redis-cli --eval lock_renew.lua orders stock , 30000 me:1 me:1
local renewed = {}
local lease = tonumber(ARGV[1])
for i, lock in ipairs(KEYS) do
    -- pcall: a key of a wrong type is no lock, and must not prevent the renewal of the other locks.
    if redis.pcall('HEXISTS', lock, ARGV[i + 1]) == 1 then
        -- A level may have a longer lease, which is not shortened.
        if lease > 0 and redis.call('PTTL', lock) < lease then
            redis.call('PEXPIRE', lock, ARGV[1])
        end
        renewed[i] = 1
    else
        renewed[i] = 0
    end
end
return renewed
