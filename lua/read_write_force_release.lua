#!lua flags=allow-oom
-- Removes a read-write lock if that side of it is held, by whomever.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> holds, writer:write -> holds
-- ARGV[1]  its channel
-- ARGV[2]  the side: read or write
-- returns  1: it was held; 0: it wasn't. A second run may hit the next holder: never sent again.
--
-- redis-cli --eval read_write_force_release.lua orders , redisson_rwlock:{orders} write
if redis.call('HGET', KEYS[1], 'mode') ~= ARGV[2] then
    return 0
end
redis.call('DEL', KEYS[1])
-- pcall: a user without permission on the channel must still be able to release.
redis.pcall('PUBLISH', ARGV[1], ARGV[2] == 'write' and '1' or '0')
return 1
