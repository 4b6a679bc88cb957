#!lua flags=allow-oom
-- Wakes the waiters of a lock whose holder has noticed that its hold is lost. Does nothing if the lock is held.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- ARGV[1]  the lock's channel (not a key: a user may publish there without a right to keys of that name)
-- ARGV[2]  the message of a release
-- returns  1: the lock is free, and its waiters were notified; 0: the lock is held
--
-- Idempotent: a second run only repeats the message.
--
-- redis-cli --eval lock_wake_waiters.lua orders , redisson_lock__channel:{orders} 0

-- include: publish
if redis.call('EXISTS', KEYS[1]) == 1 then
    return 0
end
publish(ARGV[1], ARGV[2])
return 1
