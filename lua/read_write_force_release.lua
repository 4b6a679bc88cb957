#!lua flags=allow-oom
-- Removes a read-write lock if the given side of it is held, by any owner.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- ARGV[1]  the lock's channel
-- ARGV[2]  the side: read or write
-- returns  1: this side was held; 0: it wasn't
--
-- Not idempotent: a second run could remove the lock of the next holder. It is never sent again.
--
-- redis-cli --eval read_write_force_release.lua orders , redisson_rwlock:{orders} write

-- include: publish
if redis.call('HGET', KEYS[1], 'mode') ~= ARGV[2] then
    return 0
end
redis.call('DEL', KEYS[1])
publish(ARGV[1], ARGV[2] == 'write' and '1' or '0')
return 1
