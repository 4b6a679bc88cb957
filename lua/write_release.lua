#!lua flags=allow-oom
-- Gives back holds of the write side, down to a stated number; also undoes an acquire whose outcome is unknown.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> holds, writer:write -> holds
-- KEYS[2]  what the names of the readers' timeout keys begin with
-- ARGV[1]  its channel
-- ARGV[2]  writer, `:write` included
-- ARGV[3]  holds that the writer has left (0: nobody writes any more); absolute, so a second run changes nothing
-- returns  1: nobody writes now; 0: still held; nil: the writer holds nothing
--
-- redis-cli --eval write_release.lua orders {orders}: , redisson_rwlock:{orders} me:1:write 0
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
    -- The writer goes on reading.
    redis.call('HSET', lock, 'mode', 'read')
    redis.call('PEXPIRE', lock, longest)
else
    redis.call('DEL', lock)
end
-- pcall: a user without permission on the channel must still be able to release.
redis.pcall('PUBLISH', ARGV[1], '1')
return 1
