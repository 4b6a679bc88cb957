#!lua flags=allow-oom
-- Gives back holds of a fair lock, down to a stated number; the last one hands it to the next in line.
--
-- KEYS[1]  the lock: a hash, owner -> holds
-- KEYS[2]  its queue
-- KEYS[3]  the scores of the queue
-- KEYS[4]  our own waiters
-- KEYS[5]  our own clients
-- ARGV[1]  its channel; the next one listens to this one, a colon, and its own name
-- ARGV[2]  owner
-- ARGV[3]  holds that the owner has left (0: the lock is free); absolute, so a second run changes nothing
-- ARGV[4]  how long a place in the queue lasts by Redisson's rules, ms
-- returns  1: the lock is free now; 2: the same, and dead waiters are still to be dropped before the next one can be
--          told, by fair_heartbeat; 0: still held; nil: the owner holds nothing
--
-- redis-cli --eval fair_release.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} me:1 0 300000
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
    return false
end
if ARGV[3] ~= '0' then
    redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
    return 0
end
-- include: fair_queue
redis.call('DEL', KEYS[1])
local _, more = hand_off(tonumber(ARGV[4]), true)
return more and 2 or 1
