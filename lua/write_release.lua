#!lua flags=allow-oom
-- Releases levels of a writer's hold, down to a stated number. Also undoes an acquire that is in doubt.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the prefix of the names of the readers' lease keys
-- ARGV[1]  the lock's channel
-- ARGV[2]  the writer, `:write` included
-- ARGV[3]  how many levels remain (0: it stops writing)
-- returns  1: nobody writes now; 3: the same, and several clients have heard of it, or it isn't known how many; 0: still
--          held; nil: the writer has no hold
--
-- Idempotent: the number of levels is absolute, and a writer without a hold changes nothing.
--
-- redis-cli --eval write_release.lua orders {orders}: , redisson_rwlock:{orders} me:1:write 0

-- include: publish
local lock, leases = KEYS[1], KEYS[2]
-- include: read_leases
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
local receivers = publish(ARGV[1], '1')
if type(receivers) ~= 'number' or receivers > 1 then
    return 3
end
return 1
