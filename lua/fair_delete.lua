#!lua flags=allow-oom
-- Removes a fair lock with its queue, and tells the first in line, who then stand in line again.
--
-- KEYS[1]  the lock
-- KEYS[2]  its queue
-- KEYS[3]  the scores of the queue
-- KEYS[4]  our own waiters
-- KEYS[5]  our own clients
-- ARGV[1]  its channel; a waiter listens to this one, a colon, and its own name
-- ARGV[2]  how many are told; the others of ours find out by their client's next tick
-- returns  1: it was held; 0: it was free. A second run may hit the next holder: never sent again.
--
-- redis-cli --eval fair_delete.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} 100
local held = redis.call('DEL', KEYS[1])
local first = redis.call('LRANGE', KEYS[2], 0, ARGV[2] - 1)
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
for _, owner in ipairs(first) do
    -- pcall: a user without permission on the channel must still be able to delete.
    redis.pcall('PUBLISH', ARGV[1] .. ':' .. owner, '0')
end
return held
