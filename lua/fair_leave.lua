#!lua flags=allow-oom
-- Removes owners that stop waiting from the queue of a fair lock. If it was their turn, the next waiter gets it.
--
-- KEYS[1]    the lock: a hash, owner -> number of holds
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
local wait, doubt = tonumber(ARGV[2]), ARGV[3] == '1'
-- include: fair_queue
-- include: fair_sweep
local front = {}
for _, owner in ipairs(redis.call('LRANGE', KEYS[2], 0, FRONT - 1)) do
    front[owner] = true
end
local found, turn = 0, false
for i = 4, #ARGV do
    local owner = ARGV[i]
    local score = redis.call('ZSCORE', KEYS[3], owner)
    local here = true
    if doubt and redis.call('HEXISTS', KEYS[1], owner) == 1 then
        redis.call('DEL', KEYS[1])
        turn = true
    elseif redis.call('LINDEX', KEYS[2], 0) == owner then
        drop(owner, 'LPOP')
        turn = true
    elseif redis.call('LINDEX', KEYS[2], -1) == owner then
        drop(owner, 'RPOP')
    elseif not score then
        here = false
    elseif not is_gone(redis.call('HGET', KEYS[4], owner) or now) then
        -- The owner is in the middle of the queue. Searching a long queue would block the server, so the owner is only
        -- marked. It is dropped when it comes to an end of the queue, or by a sweep. Redisson drops it by its score,
        -- and computes the score of the next newcomer from it. So the score loses the owner's own share, and keeps
        -- the share of Redisson's waiters before it: when they have been served, the score has run out. For the
        -- first places `keep_front` does the same.
        if not front[owner] then
            score = score - wait - math.max(redis.call('PTTL', KEYS[1]), 0)
            redis.call('ZADD', KEYS[3], 'XX', text(math.max(score, now)), owner)
        end
        redis.call('HSET', KEYS[4], owner, 0)
    end
    if here then
        found = found + 1
    end
end
-- An owner may have been marked before the owners ahead of it were dropped, and be the head now.
local _, was_head = drop_gone(0, 'LPOP')
turn = turn or was_head
local tail = drop_gone(-1, 'RPOP')
if doubt then
    for i = 4, #ARGV do
        redis.call('HSET', KEYS[4], ARGV[i], text(-(now + LATE)))
    end
end
sweep()
-- A late copy arrives within seconds, if at all.
redis.call('PEXPIRE', KEYS[4], text((tail and KEEP or LATE) + math.max(redis.call('PTTL', KEYS[1]), 0)))
keep_front(wait, redis.call('PTTL', KEYS[1]))
if turn and redis.call('EXISTS', KEYS[1]) == 0 then
    hand_off(wait, true)
end
return found
