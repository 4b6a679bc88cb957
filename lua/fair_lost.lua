#!lua flags=allow-oom
-- Hands a fair lock to the next in line whose holder has found out that its hold is gone; nothing if it is held.
--
-- KEYS[1]  the lock: a hash, owner -> holds
-- KEYS[2]  its queue
-- KEYS[3]  the scores of the queue
-- KEYS[4]  our own waiters
-- KEYS[5]  our own clients
-- ARGV[1]  its channel; the next one listens to this one, a colon, and its own name
-- ARGV[2]  how long a place in the queue lasts by Redisson's rules, ms
-- returns  1: the lock is free, and the next in line was told; 0: somebody holds it. A second run tells him again.
--
-- redis-cli --eval fair_lost.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} 300000
if redis.call('EXISTS', KEYS[1]) == 1 then
    return 0
end
-- include: fair_queue
hand_off(tonumber(ARGV[2]), false)
return 1
