#!lua flags=allow-oom
-- Notifies the next waiter of a fair lock whose holder has noticed that its hold is lost.
-- Does nothing if the lock is held.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  its queue: a list of owners, the next one first
-- KEYS[3]  the scores of the queue: a sorted set, owner -> until when Redisson keeps its place, ms (server's time)
-- KEYS[4]  the waiters of pyredisson: a hash, owner -> when it last asked for the lock, ms (0 or less: it has left)
-- KEYS[5]  the clients of pyredisson: a sorted set, client -> until when it counts as alive, ms
-- ARGV[1]  the lock's channel; a waiter subscribes to this name followed by a colon and the waiter's own name
-- ARGV[2]  how long a place in the queue lasts by Redisson's rules, ms
-- returns  1: the lock is free, and the next waiter was notified; 0: the lock is held
--
-- Idempotent: a second run only repeats the message.
--
-- redis-cli --eval fair_wake_waiters.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} 300000
if redis.call('EXISTS', KEYS[1]) == 1 then
    return 0
end
-- include: fair_queue
notify_head(tonumber(ARGV[2]), false)
return 1
