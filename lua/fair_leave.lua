#!lua flags=allow-oom
-- Removes owners that stop waiting from the queue of a fair lock. If one of them was next, the next waiter is notified.
--
-- KEYS[1]    the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]    its queue: a list of owners, the next one first
-- KEYS[3]    the scores of the queue: a sorted set, owner -> until when Redisson keeps its place, ms (server's time)
-- KEYS[4]    the waiters of pyredisson: a hash, owner -> when it last asked for the lock, ms (0 or less: it has left)
-- KEYS[5]    the clients of pyredisson: a sorted set, client -> until when it counts as alive, ms
-- ARGV[1]    the lock's channel; a waiter subscribes to this name followed by a colon and the waiter's own name
-- ARGV[2]    how long a place in the queue lasts by Redisson's rules, ms
-- ARGV[3]    1: an acquire of theirs is in doubt: if it ran it is undone, and a late copy of it will change nothing
-- ARGV[i+3]  an owner, which must not use this name again
-- returns    how many of them were in the queue, or held the lock
--
-- Idempotent: an owner that has already left is not found any more.
--
-- redis-cli --eval fair_leave.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} 300000 0 me:1
local place_lasts, in_doubt = tonumber(ARGV[2]), ARGV[3] == '1'
-- include: fair_queue
-- include: fair_sweep
local front = {}
for _, owner in ipairs(redis.call('LRANGE', KEYS[2], 0, FRONT_PLACES - 1)) do
    front[owner] = true
end
local found, must_notify = 0, false
for i = 4, #ARGV do
    local owner = ARGV[i]
    local score = redis.call('ZSCORE', KEYS[3], owner)
    local was_there = true
    if in_doubt and redis.call('HEXISTS', KEYS[1], owner) == 1 then
        redis.call('DEL', KEYS[1])
        must_notify = true
    elseif redis.call('LINDEX', KEYS[2], 0) == owner then
        drop(owner, 'LPOP')
        must_notify = true
    elseif redis.call('LINDEX', KEYS[2], -1) == owner then
        drop(owner, 'RPOP')
    elseif not score then
        was_there = false
    elseif not has_left(when_asked(owner) or now) then
        -- The owner is in the middle of the queue. Searching a long queue would block the server, so KEYS[4]
        -- only records that the owner has left. It is dropped when it comes to an end of the queue, or by a sweep.
        -- Redisson drops it by its score, and computes the score of the next newcomer from it. So the score loses the
        -- owner's own share, and keeps the share of Redisson's waiters before it: when they have been served, the
        -- score has run out. For the first places `keep_front` does the same.
        if not front[owner] then
            score = score - place_lasts - math.max(redis.call('PTTL', KEYS[1]), 0)
            redis.call('ZADD', KEYS[3], 'XX', text(math.max(score, now)), owner)
        end
        redis.call('HSET', KEYS[4], owner, 0)
    end
    if was_there then
        found = found + 1
    end
end
-- An owner may have left before the owners ahead of it were dropped, and be the head now.
local _, was_head = drop_leavers(0, 'LPOP')
must_notify = must_notify or was_head
local tail = drop_leavers(-1, 'RPOP')
if in_doubt then
    -- Until then a late copy of the acquire finds that its owner has left.
    for i = 4, #ARGV do
        redis.call('HSET', KEYS[4], ARGV[i], text(-(now + LATE)))
    end
end
sweep()
-- A late copy arrives within seconds, if at all.
redis.call('PEXPIRE', KEYS[4], text((tail and KEEP or LATE) + math.max(redis.call('PTTL', KEYS[1]), 0)))
keep_front(place_lasts, redis.call('PTTL', KEYS[1]))
if must_notify and redis.call('EXISTS', KEYS[1]) == 0 then
    notify_head(place_lasts, true)
end
return found
