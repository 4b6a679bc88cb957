#!lua
-- Acquires a fair lock, or adds a level to its owner's hold. An owner that has to wait enters the queue.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  its queue: a list of owners, the next one first
-- KEYS[3]  the scores of the queue: a sorted set, owner -> until when Redisson keeps its place, ms (server's time)
-- KEYS[4]  the waiters of pyredisson: a hash, owner -> when it last asked for the lock, ms (0 or less: it has left)
-- KEYS[5]  the clients of pyredisson: a sorted set, client -> until when it counts as alive, ms
-- ARGV[1]  the lock's channel; a waiter subscribes to this name followed by a colon and the waiter's own name
-- ARGV[2]  the owner
-- ARGV[3]  how many levels the owner's hold has after this call (1: a new hold)
-- ARGV[4]  the lease, ms
-- ARGV[5]  how long a place in the queue lasts by Redisson's rules, ms
-- ARGV[6]  1: enter the queue if the lock can't be acquired now; 0: only try
-- returns  nil: acquired; otherwise the remaining lease of the holder, ms (-1: endless; if the lock is free, but it is
--          another waiter's turn: how long the lock is reserved for that waiter);
--          -2: another level was asked for, but this owner doesn't hold the lock: its hold is lost;
--          -3: 200 dead waiters were dropped, and there are more: the command must be sent again at once
--
-- Idempotent: the number of levels is absolute, and an owner that is in the queue doesn't enter it again. A copy that
-- arrives after the owner has left (see fair_leave) changes nothing.
--
-- redis-cli --eval fair_acquire.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} me:1 1 30000 300000 1
if ARGV[3] == '1' and redis.call('EXISTS', unpack(KEYS)) == 0 then
    -- The usual case, without all that a queue needs.
    redis.call('HSET', KEYS[1], ARGV[2], '1')
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
    return false
end
local remaining = redis.call('PTTL', KEYS[1])
if remaining ~= -2 and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
    redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
    -- Another level never shortens the lease of the hold.
    if remaining < tonumber(ARGV[4]) then
        redis.call('PEXPIRE', KEYS[1], ARGV[4])
    end
    return false
end
if ARGV[3] ~= '1' then
    return -2
end
-- include: fair_queue
local owner, place_lasts = ARGV[2], tonumber(ARGV[5])
local asked_at = when_asked(owner)
if asked_at and has_left(asked_at) then
    -- A late copy of a command: its owner has left the queue.
    return remaining == -2 and OFFER_LASTS or remaining
end

-- Called when a waiter of pyredisson has lost its place. The reason is a Java client whose clock is ahead, or one that
-- subtracts much from the scores. From now on the scores of waiters are kept further ahead (see `margin`).
local function raise_margin()
    local raised = redis.call('HGET', KEYS[4], MARGIN_FIELD)
    local raised_at = tonumber(string.match(raised or '', ' (%d+)$') or 0)
    if math.abs(now - raised_at) < 1000 then
        -- Several waiters were evicted together: the margin is raised once.
        return
    end
    local ms = margin(raised, place_lasts)
    if redis.call('EXISTS', KEYS[2]) == 1 then
        ms = math.max(ms, math.min(ms * 4, 3 * place_lasts))
    end
    redis.call('HSET', KEYS[4], MARGIN_FIELD, text(ms) .. ' ' .. text(now))
end

-- Notes that the caller asks for the lock now. The key of pyredisson's waiters must outlive the lock's lease.
local function note_asked()
    redis.call('HSET', KEYS[4], owner, text(now))
    redis.call('PEXPIRE', KEYS[4], text(KEEP + math.max(remaining, 0)))
end

-- Keeps the place of the caller, if it has one: the caller is alive, so its score moves on with time. Otherwise the
-- score would run out: Redisson subtracts its own waiting time from every score whenever one of its waiters acquires
-- the lock. Returns the old score (false: the caller has no place).
local function keep_place()
    local score = redis.call('ZSCORE', KEYS[3], owner)
    if score and asked_at and asked_at < now then
        redis.call('ZADD', KEYS[3], 'XX', text(score + now - asked_at), owner)
    end
    if score then
        note_asked()
    end
    return score
end

if remaining == -2 then
    local head, _, dropped, more = redis.call('LINDEX', KEYS[2], 0), nil, false, false
    if head ~= owner then
        keep_place()
        head, _, dropped, more = living_head(true)
        if more then
            return -3
        end
    end
    if not head or head == owner then
        redis.call('HSET', KEYS[1], owner, 1)
        redis.call('PEXPIRE', KEYS[1], ARGV[4])
        if head then
            leave_as_head(head)
        end
        return false
    end
    if dropped then
        notify_head(place_lasts, false)
    end
    remaining = OFFER_LASTS
end
if ARGV[6] ~= '1' then
    return remaining
end
local tail = drop_leavers(-1, 'RPOP')
local place = 0
if not keep_place() then
    if asked_at then
        raise_margin()
    end
    local soonest = now + math.max(remaining, 0)
    local score = soonest + place_lasts
    if tail then
        local last = number_in(redis.call('ZSCORE', KEYS[3], tail)) or soonest
        if when_asked(tail) then
            score = math.max(last, score)
        else
            score = math.max(last, soonest) + place_lasts
        end
    end
    place = redis.call('RPUSH', KEYS[2], owner)
    if place == FRONT_PLACES + 1 then
        -- Behind the first places `keep_front` doesn't adjust scores, so a score must last from one call of its
        -- owner to the next.
        score = score + place_lasts
    end
    redis.call('ZADD', KEYS[3], text(score), owner)
    if offered_at(owner) then
        -- The offer was made at an earlier place, which Redisson has dropped.
        redis.call('HDEL', KEYS[4], OFFERED_FIELD)
    end
    note_asked()
end
if place <= FRONT_PLACES then
    keep_front(place_lasts, remaining)
end
return remaining
