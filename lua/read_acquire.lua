#!lua
-- Takes the read side of a read-write lock, or counts one more hold of its reader.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> holds, writer:write -> holds
-- KEYS[2]  what the names of the readers' timeout keys begin with
-- KEYS[3]  the claim of a writer that waits for the readers to leave
-- ARGV[1]  reader
-- ARGV[2]  holds that the reader has after this call (1: a fresh hold); absolute, so a second run changes nothing
-- ARGV[3]  lease, ms
-- ARGV[4]  the field of the same owner's write side: who writes may also read
-- returns  nil: taken; else how long to wait for whoever is in or has a claim, ms (-1: endless);
--          -2: a further hold was asked for, but the reader has none, so its earlier hold is lost
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
    local left = redis.call('PTTL', lock)
    if mode == 'read' or left == -2 then
        -- Readers that come and overlap for ever would starve a writer. One that is in already may go on.
        local claimed = redis.call('PTTL', KEYS[3])
        if claimed ~= -2 then
            return claimed
        end
        redis.call('HSET', lock, 'mode', 'read')
    elseif redis.call('HEXISTS', lock, ARGV[4]) == 0 then
        -- Somebody writes; or, without a mode, a lock of another kind goes by that name.
        return left
    end
end
for given_back = hold + 1, holds do
    redis.call('DEL', lease_key(reader, given_back))
end
-- What an earlier hold of the same name left there is no lease of this one.
if holds < hold or redis.call('PTTL', lease_key(reader, hold)) < lease then
    redis.call('SET', lease_key(reader, hold), '1', 'PX', ARGV[3])
end
redis.call('HSET', lock, reader, ARGV[2])
-- After the timeout key, so that the lock outlives it; and never shortened: others read, too.
if redis.call('PTTL', lock) < lease then
    redis.call('PEXPIRE', lock, ARGV[3])
end
return false
