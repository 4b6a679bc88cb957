#!lua flags=allow-oom
-- Removes a fair lock, whoever holds it, and hands it to the next in line.
--
-- KEYS[1]  the lock
-- KEYS[2]  its queue
-- KEYS[3]  the scores of the queue
-- KEYS[4]  our own waiters
-- KEYS[5]  our own clients
-- ARGV[1]  its channel; the next one listens to this one, a colon, and its own name
-- ARGV[2]  how long a place in the queue lasts by Redisson's rules, ms
-- returns  1: it was held; 0: it was free. A second run may hit the next holder: never sent again.
--
-- redis-cli --eval fair_force_release.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} 300000
if redis.call('DEL', KEYS[1]) == 0 then
    return 0
end
-- include: fair_queue
hand_off(tonumber(ARGV[2]), true)
return 1
