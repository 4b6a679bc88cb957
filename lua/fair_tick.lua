#!lua flags=allow-oom
-- A client's sign of life while it has waiters for a fair lock; also sees to it that the next one in line is told.
--
-- KEYS[1]  the lock
-- KEYS[2]  its queue
-- KEYS[3]  the scores of the queue
-- KEYS[4]  our own waiters
-- KEYS[5]  our own clients
-- ARGV[1]  its channel; the next one listens to this one, a colon, and its own name
-- ARGV[2]  client: what stands before the first colon in its owners' names
-- ARGV[3]  how long a place in the queue lasts by Redisson's rules, ms
-- returns  the lock's PTTL; 1: the client was known to be alive, 0: it wasn't, so its waiters may have lost their
--          places; and who was told that the lock is free (empty: nobody)
--
-- redis-cli --eval fair_tick.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} me 300000
local client, wait = ARGV[2], tonumber(ARGV[3])
-- include: fair_queue
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', '(' .. text(now))
local known = redis.call('ZSCORE', KEYS[5], client)
local left = redis.call('PTTL', KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 1 then
    redis.call('ZADD', KEYS[5], text(now + ALIVE), client)
    redis.call('PEXPIRE', KEYS[4], text(KEEP + math.max(left, 0)))
    redis.call('PEXPIRE', KEYS[5], text(KEEP))
end
local told = ''
if left == -2 then
    told = hand_off(wait, false) or ''
else
    redis.call('HDEL', KEYS[4], OFFERED)
    local head, ours = living_head(false)
    if ours then
        -- Redisson drops a head by its score alone: one of a dead client soon, one of a living client never.
        redis.call('ZADD', KEYS[3], 'XX', text(now + HEAD), head)
    end
end
return {left, known and 1 or 0, told}
