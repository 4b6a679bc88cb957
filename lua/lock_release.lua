#!lua flags=allow-oom
-- Gives back holds of a lock, down to a stated number; also undoes an acquire whose outcome is unknown.
--
-- KEYS[1]  the lock: a hash, owner -> holds
-- ARGV[1]  its channel (no key: a user may publish there without a right to keys of that name); empty: it has none
-- ARGV[2]  owner
-- ARGV[3]  holds that the owner has left (0: the lock is free); absolute, so a second run changes nothing
-- returns  1: the lock is free now; 0: still held; nil: the owner holds nothing
--
-- redis-cli --eval lock_release.lua orders , redisson_lock__channel:{orders} me:1 0
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
    return false
end
if ARGV[3] ~= '0' then
    redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
    return 0
end
redis.call('DEL', KEYS[1])
if ARGV[1] ~= '' then
    -- pcall: a user without permission on the channel must still be able to release.
    redis.pcall('PUBLISH', ARGV[1], '0')
end
return 1
