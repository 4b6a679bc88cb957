#!lua flags=allow-oom
-- Releases levels of a hold of a fair lock, down to a stated number. If none remains, the next waiter is notified.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  its queue: a list of owners, the next one first
-- KEYS[3]  the scores of the queue: a sorted set, owner -> until when Redisson keeps its place, ms (server's time)
-- KEYS[4]  the waiters of pyredisson: a hash, owner -> when it last asked for the lock, ms (0 or less: it has left)
-- KEYS[5]  the clients of pyredisson: a sorted set, client -> until when it counts as alive, ms
-- ARGV[1]  the lock's channel; a waiter subscribes to this name followed by a colon and the waiter's own name
-- ARGV[2]  the owner
-- ARGV[3]  how many levels remain (0: the lock becomes free)
-- ARGV[4]  how long a place in the queue lasts by Redisson's rules, ms
-- returns  1: the lock is free now; 2: the same, but dead waiters have to be dropped by fair_heartbeat before the next
--          living waiter can be notified; 0: still held; nil: the owner doesn't hold the lock
--
-- Idempotent: the number of levels is absolute, and an owner that doesn't hold the lock changes nothing.
--
-- redis-cli --eval fair_release.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} me:1 0 300000
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
    return false
end
if ARGV[3] ~= '0' then
    redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
    return 0
end
if redis.call('EXISTS', unpack(KEYS, 2)) == 0 then
    redis.call('DEL', KEYS[1])
    return 1
end
-- include: fair_queue
redis.call('DEL', KEYS[1])
local _, more = notify_head(tonumber(ARGV[4]), true)
return more and 2 or 1
