#!lua flags=allow-oom
-- Removes a fair lock, whoever holds it, and notifies the next waiter.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  its queue: a list of owners, the next one first
-- KEYS[3]  the scores of the queue: a sorted set, owner -> until when Redisson keeps its place, ms (server's time)
-- KEYS[4]  the waiters of pyredisson: a hash, owner -> when it last asked for the lock, ms (0 or less: it has left)
-- KEYS[5]  the clients of pyredisson: a sorted set, client -> until when it counts as alive, ms
-- ARGV[1]  the lock's channel; a waiter subscribes to this name followed by a colon and the waiter's own name
-- ARGV[2]  how long a place in the queue lasts by Redisson's rules, ms
-- returns  1: the lock was held; 0: it was free
--
-- Not idempotent: a second run could remove the lock of the next holder. It is never sent again.
--
-- redis-cli --eval fair_force_release.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} 300000

-- include: fair_queue
if redis.call('DEL', KEYS[1]) == 0 then
    return 0
end
notify_head(tonumber(ARGV[2]), true)
return 1
