#!lua flags=allow-oom
-- Wakes those who wait for a lock whose holder has found out that its hold is gone; does nothing if the lock is held.
--
-- KEYS[1]  the lock: a hash, owner -> holds
-- ARGV[1]  its channel (no key: a user may publish there without a right to keys of that name)
-- ARGV[2]  what a release publishes there
-- returns  1: the lock is free, and its waiters were told; 0: somebody holds it. A second run only wakes once more.
--
-- redis-cli --eval lock_lost.lua orders , redisson_lock__channel:{orders} 0
if redis.call('EXISTS', KEYS[1]) == 1 then
    return 0
end
-- pcall: without permission on the channel there is nobody whom this user could tell.
redis.pcall('PUBLISH', ARGV[1], ARGV[2])
return 1
