#!lua
-- Acquires the read side of a read-write lock, or adds a hold for the reader that has it.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of holds, writer:write -> number of holds
-- KEYS[2]  the prefix of the names of the readers' timeout keys
-- KEYS[3]  the claim of a writer that waits for the readers to release the lock
-- ARGV[1]  the reader
-- ARGV[2]  how many holds the reader has after this call (1: its first hold)
-- ARGV[3]  the lease, ms
-- ARGV[4]  the field of the same owner's write side: a writer may also read
-- returns  nil: acquired; otherwise how long to wait for the holder or for the claim, ms (-1: endless);
--          -2: a nested hold was asked for, but the reader has none: its earlier hold is lost
--
-- Idempotent: the number of holds is absolute.
--
-- redis-cli --eval read_acquire.lua orders {orders}: pyredisson_rwlock_writer:{orders} , me:1 1 30000 me:1:write
local lock, leases = KEYS[1], KEYS[2]
-- include: read_leases
local reader, hold, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local holds = tonumber(redis.call('HGET', lock, reader) or 0)
if holds == 0 then
    if hold > 1 then
        return -2
    end
    local mode = redis.call('HGET', lock, 'mode')
    local remaining = redis.call('PTTL', lock)
    if mode == 'read' or remaining == -2 then
        -- New readers wait for a claim: readers that follow each other without a gap would starve the writer. A reader
        -- that has a hold may acquire another one.
        local claimed = redis.call('PTTL', KEYS[3])
        if claimed ~= -2 then
            return claimed
        end
        redis.call('HSET', lock, 'mode', 'read')
    elseif redis.call('HEXISTS', lock, ARGV[4]) == 0 then
        -- Another owner writes. Or there is no mode: then the key is a lock of another kind.
        return remaining
    end
end
for released = hold + 1, holds do
    redis.call('DEL', lease_key(reader, released))
end
-- A timeout key of an earlier hold with the same number doesn't count for a new hold.
if holds < hold or redis.call('PTTL', lease_key(reader, hold)) < lease then
    redis.call('SET', lease_key(reader, hold), '1', 'PX', ARGV[3])
end
redis.call('HSET', lock, reader, ARGV[2])
-- After the timeout key, so that the lock outlives it. Never shortened, because other readers may have longer
-- leases.
if redis.call('PTTL', lock) < lease then
    redis.call('PEXPIRE', lock, ARGV[3])
end
return false
