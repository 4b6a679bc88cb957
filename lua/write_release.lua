#!lua flags=allow-oom
-- Releases levels of a writer's hold, down to a stated number. Also undoes an acquire that is in doubt.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the prefix of the names of the readers' lease keys
-- KEYS[3]  the clients that wait to write: a sorted set, see waiting_list.lua
-- KEYS[4]  the clients that wait to read
-- KEYS[5]  the client that was woken: a hash
-- ARGV[1]  the lock's channel
-- ARGV[2]  the writer, `:write` included
-- ARGV[3]  how many levels remain (0: it stops writing)
-- ARGV[4]  the beginning of the names of the clients' channels
-- ARGV[5]  for how long others may come before the woken client, us
-- ARGV[6]  1: the owner's client is woken, too, as it sends this in the background
-- returns  1: nobody writes now; 3: the same, and clients of Redisson may have heard of it; 0: still held; nil: the writer
--          has no hold
--
-- Idempotent: the number of levels is absolute, and a writer without a hold changes nothing.
--
-- redis-cli --eval write_release.lua orders {orders}: pyredisson_waiting:{orders} pyredisson_waiting_readers:{orders} pyredisson_woken:{orders} , redisson_rwlock:{orders} me:1:write 0 pyredisson_wake:{orders}: 5000 0

-- include: publish
local lock, leases = KEYS[1], KEYS[2]
if ARGV[3] == '0' and ARGV[6] == '0' and redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[5]) == 0
    and redis.call('HLEN', lock) == 2 then
    local mode, writes = unpack(redis.call('HMGET', lock, 'mode', ARGV[2]))
    if mode and writes then
        -- The usual case: nobody waits, and the writer doesn't read.
        redis.call('DEL', lock)
        local heard = publish(ARGV[1], '1')
        return (type(heard) ~= 'number' or heard > 0) and 3 or 1
    end
end
-- include: wake_in_lists
-- include: read_leases
if ARGV[6] == '1' and ARGV[3] == '0' then
    -- Here, as an earlier copy of this may have released the lock without a word to the callers there.
    wake_client_of(ARGV[2], ARGV[4])
end
if redis.call('HEXISTS', lock, ARGV[2]) == 0 then
    return false
end
if ARGV[3] ~= '0' then
    redis.call('HSET', lock, ARGV[2], ARGV[3])
    return 0
end
redis.call('HDEL', lock, ARGV[2])
local longest = longest_lease()
if longest > 0 then
    -- The writer has a hold of the read side, too, and keeps it.
    redis.call('HSET', lock, 'mode', 'read')
    redis.call('PEXPIRE', lock, longest)
else
    redis.call('DEL', lock)
end
local heard = publish(ARGV[1], '1')
-- pcall: keys of a wrong type must not fail a release that was done.
pcall(longest > 0 and admit_readers or wake_next, KEYS[3], KEYS[4], KEYS[5], ARGV[4], ARGV[5], true)
if type(heard) ~= 'number' or heard > 0 then
    return 3
end
return 1
