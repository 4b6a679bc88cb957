#!lua flags=allow-oom
-- Takes owners who gave up out of a fair lock's line, and passes on the turn of one who had it.
--
-- KEYS[1]    the lock
-- KEYS[2]    its queue
-- KEYS[3]    the scores of the queue
-- KEYS[4]    our own waiters
-- KEYS[5]    our own clients
-- ARGV[1]    its channel; the next one listens to this one, a colon, and its own name
-- ARGV[2]    how long a place in the queue lasts by Redisson's rules, ms
-- ARGV[3]    1: an acquire of theirs may have run, or may run late: it is undone, and late copies find a closed door
-- ARGV[i+3]  an owner, who must not use that name again
-- returns    how many of them stood in line, or held the lock
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
        -- To search a long queue would cost everybody: it is dropped when it comes to an end of the queue, or by a
        -- sweep. Redisson drops it by its score, and reckons from it the score of whoever comes next. So without
        -- what it had for itself it keeps what it has for Redisson's waiters before it: when they are served, it is
        -- over. In front that is what `keep_front` leaves it.
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
local tail = drop_gone_tail()
if doubt then
    for i = 4, #ARGV do
        redis.call('HSET', KEYS[4], ARGV[i], text(-(now + LATE)))
    end
end
sweep()
-- A late copy comes within seconds, if at all.
redis.call('PEXPIRE', KEYS[4], text((tail and KEEP or LATE) + math.max(redis.call('PTTL', KEYS[1]), 0)))
keep_front(wait, redis.call('PTTL', KEYS[1]))
if turn and redis.call('EXISTS', KEYS[1]) == 0 then
    hand_off(wait, true)
end
return found
