#!lua
-- Acquires the read side of a read-write lock, or adds a level to its reader's hold.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the prefix of the names of the readers' lease keys
-- KEYS[3]  the claim of a writer that waits for the readers to release the lock
-- KEYS[4]  the clients that wait to write: a sorted set, see waiting_list.lua
-- KEYS[5]  the clients that wait to read
-- KEYS[6]  the client that was woken: a hash
-- ARGV[1]  the reader
-- ARGV[2]  how many levels the reader's hold has after this call (1: a new hold)
-- ARGV[3]  the lease, ms
-- ARGV[4]  the field of the same owner's write side: a writer may also read
-- ARGV[5]  the readers of the client, as a member of the list
-- ARGV[6]  for how long the list lasts if the client waits in it, ms; 0: it doesn't wait
-- ARGV[7]  the beginning of the names of the clients' channels
-- returns  nil: acquired; otherwise how long to wait for the holder or for the claim, ms (-1: endless), or for how long the
--          free lock is reserved for a writer, and what wait_in_list.lua adds for a caller that waits;
--          -2: another level was asked for, but the reader has no hold: it is lost
--
-- Idempotent: the number of levels is absolute.
--
-- redis-cli --eval read_acquire.lua orders {orders}: pyredisson_rwlock_writer:{orders} pyredisson_waiting:{orders} pyredisson_waiting_readers:{orders} pyredisson_woken:{orders} , me:1 1 30000 me:1:write me:1:r 60000 pyredisson_wake:{orders}:

local LONGEST_CLAIM = 2000 -- ms, see write_acquire
local MOST_HOLDERS = 32 -- see `refused`
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
    if (mode == 'read' or remaining == -2) and redis.call('EXISTS', unpack(KEYS, 3)) == 0 then
        -- The usual case, without all that a list needs.
        redis.call('HSET', lock, 'mode', 'read')
    else
        -- include: publish
        -- include: wait_in_lists
        if mode == 'read' or remaining == -2 then
            -- New readers wait for a claim: readers that follow each other without a gap would starve the writer. A reader
            -- that has a hold may add a level.
            local claimed = redis.call('PTTL', KEYS[3])
            if claimed == -1 or claimed > LONGEST_CLAIM then
                -- Made by somebody else: it ends as a new claim does.
                redis.call('PEXPIRE', KEYS[3], LONGEST_CLAIM)
                claimed = LONGEST_CLAIM
            end
            local reserved, listed, mine = come(KEYS[5], KEYS[6], ARGV[5])
            -- A reader that was woken comes before the writer that has claimed the lock. If the lock is free, that one claims it
            -- again.
            if claimed ~= -2 and mine and mode ~= 'read' then
                redis.call('DEL', KEYS[3])
            elseif claimed ~= -2 and not mine and not is_in_phase(KEYS[6], listed) then
                return refused(lock, KEYS[5], KEYS[6], ARGV[5], ARGV[6], claimed, MOST_HOLDERS)
            end
            if reserved > 0 and mode ~= 'read' then
                return refused(lock, KEYS[5], KEYS[6], ARGV[5], ARGV[6], reserved)
            end
            redis.call('HSET', lock, 'mode', 'read')
            arrive_reading(KEYS[4], KEYS[5], KEYS[6], ARGV[5], ARGV[7], listed, mine)
        elseif redis.call('HEXISTS', lock, ARGV[4]) == 0 then
            -- Another owner writes. Or there is no mode: then the key is a lock of another kind.
            return refused(lock, KEYS[5], KEYS[6], ARGV[5], ARGV[6], remaining, MOST_HOLDERS)
        end
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
