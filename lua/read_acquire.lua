#!lua
-- Acquires the read side of a read-write lock, or adds a level to its reader's hold.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the prefix of the names of the readers' lease keys
-- KEYS[3]  the claim of a writer that waits for the readers to release the lock
-- ARGV[1]  the reader
-- ARGV[2]  how many levels the reader's hold has after this call (1: a new hold)
-- ARGV[3]  the lease, ms
-- ARGV[4]  the field of the same owner's write side: a writer may also read
-- returns  nil: acquired; otherwise how long to wait for the holder or for the claim, ms (-1: endless);
--          -2: another level was asked for, but the reader has no hold: it is lost
--
-- Idempotent: the number of levels is absolute.
--
-- redis-cli --eval read_acquire.lua orders {orders}: pyredisson_rwlock_writer:{orders} , me:1 1 30000 me:1:write
local LONGEST_CLAIM = 2000 -- ms, see write_acquire
local lock, leases = KEYS[1], KEYS[2]
-- include: read_leases
local reader, level, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if level > MOST_LEVELS then
    return redis.error_reply('ERR a reader has at most 1000 levels')
end
local levels = levels_of(redis.call('HGET', lock, reader))
if levels == 0 then
    if level > 1 then
        return -2
    end
    local mode = redis.call('HGET', lock, 'mode')
    local remaining = redis.call('PTTL', lock)
    if mode == 'read' or remaining == -2 then
        -- New readers wait for a claim: readers that follow each other without a gap would starve the writer. A reader
        -- that has a hold may add a level.
        local claimed = redis.call('PTTL', KEYS[3])
        if claimed == -1 or claimed > LONGEST_CLAIM then
            -- Made by somebody else: it ends as a new claim does.
            redis.call('PEXPIRE', KEYS[3], LONGEST_CLAIM)
            claimed = LONGEST_CLAIM
        end
        if claimed ~= -2 then
            return claimed
        end
        redis.call('HSET', lock, 'mode', 'read')
    elseif redis.call('HEXISTS', lock, ARGV[4]) == 0 then
        -- Another owner writes. Or there is no mode: then the key is a lock of another kind.
        return remaining
    end
end
for released = level + 1, levels do
    redis.call('DEL', lease_key(reader, released))
end
-- The lease key of an earlier level with the same number doesn't count for a new level.
if levels < level or redis.call('PTTL', lease_key(reader, level)) < lease then
    redis.call('SET', lease_key(reader, level), '1', 'PX', ARGV[3])
end
redis.call('HSET', lock, reader, ARGV[2])
-- After the lease key, so that the lock outlives it. Never shortened, because other readers may have longer
-- leases.
if redis.call('PTTL', lock) < lease then
    redis.call('PEXPIRE', lock, ARGV[3])
end
return false
