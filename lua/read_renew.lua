#!lua flags=allow-oom
-- Extends the leases of many readers, and keeps each lock for as long as its reader's longest lease.
--
-- KEYS[2i-1]  a read-write lock: a hash, `mode` -> read or write, reader -> holds, writer:write -> holds
-- KEYS[2i]    what the names of its readers' timeout keys begin with
-- ARGV[2i-1]  a reader of KEYS[2i-1]
-- ARGV[2i]    lease, ms; 0: a fixed one, which isn't extended. But another client's renewal of its own
--             reader may have shortened the lock to less than this one's lease
-- returns     for each lock 1: still held; 0: not this reader's
--
-- redis-cli --eval read_renew.lua orders {orders}: stock {stock}: , me:1 30000 me:1 0
local kept = {}
for i = 1, #KEYS, 2 do
    local lock, leases = KEYS[i], KEYS[i + 1]
    local reader, lease = ARGV[i], tonumber(ARGV[i + 1])
    -- pcall: a key of a wrong type is not ours and must not stop its neighbours' renewal.
    local holds = redis.pcall('HGET', lock, reader)
    local longest = 0
    if type(holds) == 'string' then
        longest = lease
        for hold = 1, tonumber(holds) do
            local key = leases .. reader .. ':rwlock_timeout:' .. hold
            local left = redis.call('PTTL', key)
            if lease > 0 and left < lease then
                -- Also where it is missing: without it, the next reader that leaves takes the lock along.
                redis.call('SET', key, '1', 'PX', lease)
            else
                -- In its last millisecond PTTL says 0 of a lease that counts.
                longest = math.max(longest, left == 0 and 1 or left)
            end
        end
    end
    if longest > 0 and redis.call('PTTL', lock) < longest then
        redis.call('PEXPIRE', lock, longest)
    end
    kept[#kept + 1] = longest > 0 and 1 or 0
end
return kept
