#!lua flags=allow-oom
-- Deletes a fair lock with its queue, and notifies the first waiters, which then enter a new queue.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  its queue: a list of owners, the next one first
-- KEYS[3]  the scores of the queue: a sorted set, owner -> until when Redisson keeps its place, ms (server's time)
-- KEYS[4]  the waiters of pyredisson: a hash, owner -> when it last asked for the lock, ms (0 or less: it has left)
-- KEYS[5]  the clients of pyredisson: a sorted set, client -> until when it counts as alive, ms
-- ARGV[1]  the lock's channel; a waiter subscribes to this name followed by a colon and the waiter's own name
-- ARGV[2]  how many waiters are notified; the other waiters of pyredisson notice it by their client's next heartbeat
-- returns  1: the lock was held; 0: it was free
--
-- Not idempotent: a second run could delete the lock of the next holder. It is never sent again.
--
-- redis-cli --eval fair_delete.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} 100

-- include: publish
local held = redis.call('DEL', KEYS[1])
-- pcall: a queue of another type is deleted like any other.
local first = redis.pcall('LRANGE', KEYS[2], 0, ARGV[2] - 1)
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
for _, owner in ipairs(first) do
    publish(ARGV[1] .. ':' .. owner, '0')
end
return held
