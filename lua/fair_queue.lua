-- Included by the scripts of the fair lock: which waiter is next, and how it is notified.
--
-- The queue and its scores (KEYS[2], KEYS[3]) are Redisson's. KEYS[4] holds the waiters of pyredisson with the time at
-- which they last asked for the lock (0 or less: the waiter has left). Whether such a waiter is alive doesn't depend on
-- its score, but on that time and on the heartbeat of its client (KEYS[5]).
--
-- The functions use these names: `asked_at`: see `when_asked`, nil for a waiter of Redisson;
-- `place_lasts`: how long a place in the queue lasts by Redisson's rules, ms.
--
-- To notify a head is to publish a message that the lock is free. Beside that, a head of pyredisson gets an offer: the
-- free lock is reserved for it for a limited time (OFFER_LASTS), then the head counts as dead.

-- include: publish
-- include: fair_enter
local ALIVE = 1500 -- ms for which an acquire command or a heartbeat is a sign of life
local OFFER_LASTS = 2000 -- ms for which a free lock is reserved for a head that is a waiter of pyredisson
local HEAD_MARGIN = 8000 -- ms after which Redisson drops a dead head of pyredisson; more after an eviction
local KEEP = 7200000 -- ms for which pyredisson's keys outlive the lock's lease, also if the clock steps forward
local LATE = 60000 -- ms within which a late copy of a command may arrive
local FRONT_PLACES = 16 -- number of places whose scores `keep_front` adjusts
local MOST_DROPS = 200 -- number of dead heads that one call drops at most

-- A key of another type raises its error here, before anything is changed.
redis.call('LINDEX', KEYS[2], 0)
redis.call('HGET', KEYS[4], '')
for _, scores in ipairs({KEYS[3], KEYS[5]}) do
    redis.call('ZSCORE', scores, '')
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Drops waiters that have left, from one end of the queue. `index` and `pop` are 0 and 'LPOP', or -1 and 'RPOP'.
-- Returns two values: the waiter that is at that end now (nil: the queue is empty); whether any was dropped.
local function drop_leavers(index, pop)
    local waiter
    local dropped = false
    for _ = 1, MOST_DROPS do
        waiter = redis.call('LINDEX', KEYS[2], index)
        local asked_at = waiter and when_asked(waiter)
        if not asked_at or not has_left(asked_at) then
            break
        end
        drop(waiter, pop)
        dropped = true
    end
    if not waiter or (dropped and redis.call('EXISTS', KEYS[2]) == 0) then
        forget_queue()
        return nil, dropped
    end
    return waiter, dropped
end

-- When the lock was offered to this waiter; nil: it wasn't, or another waiter got the offer since.
local function offered_at(waiter)
    local at, offered_to = string.match(redis.call('HGET', KEYS[4], OFFERED_FIELD) or '', '^(%d+) (.*)$')
    -- The clock may have been set back.
    if offered_to == waiter and tonumber(at) <= now then
        return tonumber(at)
    end
    return nil
end

-- Begins a period of grace if all clients were silent: the server may have been paused, or its clock may have stepped
-- forward. Then no waiter counts as dead for another 1.5 s (ALIVE), so that the clients can send a heartbeat first.
-- Returns the end of the latest period of grace, ms; it may be over.
local function begin_grace_if_all_silent()
    local last_sign = tonumber(redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2])
    local grace_ends = number_in(redis.call('HGET', KEYS[4], GRACE_FIELD)) or 0
    if grace_ends > now + ALIVE then
        -- The clock was set back.
        grace_ends = 0
    end
    if last_sign and last_sign < now and grace_ends < last_sign then
        grace_ends = now + ALIVE
        redis.call('HSET', KEYS[4], GRACE_FIELD, text(grace_ends))
    end
    return grace_ends
end

local function in_grace()
    return now < begin_grace_if_all_silent()
end

local heartbeats = {}

local function is_silent(waiter, asked_at)
    if asked_at + ALIVE >= now then
        return false
    end
    local client = string.match(waiter, '^[^:]*')
    heartbeats[client] = heartbeats[client] or redis.call('ZSCORE', KEYS[5], client) or '0'
    return tonumber(heartbeats[client]) < now
end

-- `check_offer`: a head that hasn't acquired the lock within OFFER_LASTS after it was offered counts as dead.
local function is_dead(head, score, asked_at, check_offer)
    if not score then
        return true
    end
    if not asked_at then
        -- A waiter of Redisson keeps its turn as long as its score says.
        return tonumber(score) <= now
    end
    if has_left(asked_at) then
        return true
    end
    if is_silent(head, asked_at) then
        return not in_grace()
    end
    local offered = check_offer and offered_at(head)
    return offered and offered + OFFER_LASTS <= now and not in_grace()
end

-- Drops dead heads; `check_offer`: see `is_dead`. Returns four values:
-- the living head (nil: the queue is empty, or the search isn't finished);
-- whether that head is a waiter of pyredisson;
-- whether any head was dropped;
-- whether there are more dead heads than one call may drop: then another call has to continue.
local function living_head(check_offer)
    for drops = 0, MOST_DROPS do
        local head = redis.call('LINDEX', KEYS[2], 0)
        if not head then
            forget_queue()
            return nil, false, drops > 0, false
        end
        local score = redis.call('ZSCORE', KEYS[3], head)
        local asked_at = when_asked(head)
        if not is_dead(head, score, asked_at, check_offer) then
            return head, asked_at and true or false, drops > 0, false
        end
        if drops == MOST_DROPS then
            break
        end
        drop(head, 'LPOP')
        if asked_at and not has_left(asked_at) and not score then
            -- Only its score was removed, so the waiter may be alive: the message makes it enter the queue again.
            publish(ARGV[1] .. ':' .. head, '0')
        end
    end
    return nil, false, true, true
end

-- How far in the future the score of a head of pyredisson is kept, ms. `raised` is the value of MARGIN_FIELD.
local function margin(raised, place_lasts)
    local ms, raised_at = string.match(raised or '', '^(%d+) (%d+)$')
    if ms and now < raised_at + MEMORY then
        return math.min(tonumber(ms), math.max(HEAD_MARGIN, 3 * place_lasts))
    end
    return HEAD_MARGIN
end

-- Adjusts the scores of the first places. Redisson subtracts its own waiting time from every score whenever one of its
-- waiters acquires the lock, and drops a head only by its score. So the score of a living waiter of pyredisson is kept
-- just high enough that Redisson doesn't drop it. If the waiter dies, Redisson drops it soon after it has become the
-- head, also if no client of pyredisson is alive. `remaining` is the lock's PTTL.
local function keep_front(place_lasts, remaining)
    local front = redis.call('LRANGE', KEYS[2], 0, FRONT_PLACES - 1)
    if #front == 0 then
        return
    end
    local scores = redis.call('ZMSCORE', KEYS[3], unpack(front))
    local fields = redis.call('HMGET', KEYS[4], MARGIN_FIELD, unpack(front))
    -- `turn_by`: when the waiters of Redisson before this place have had their turns, at the latest.
    local ahead, turn_by, changes = margin(fields[1], place_lasts), now, {}
    for i, waiter in ipairs(front) do
        local score, asked_at = tonumber(scores[i] or nil), number_in(fields[i + 1])
        local new = score
        -- The highest plausible score. Only a waiter of Redisson with a longer `place_lasts` explains more.
        local most = turn_by + 3 * place_lasts + math.max(remaining, 0) + LATE
        if not asked_at then
            turn_by = score and score > most and score < MOST and score or turn_by + place_lasts
        elseif score and has_left(asked_at) then
            new = math.min(score, turn_by)
        elseif score and score > turn_by + ahead then
            new = (turn_by == now or score <= most + ahead) and turn_by + ahead or score
        elseif score and score < turn_by + ahead - 1000 and not is_silent(waiter, asked_at) then
            new = turn_by + ahead
        end
        if new ~= score then
            changes[#changes + 1] = text(new)
            changes[#changes + 1] = waiter
        end
    end
    if #changes > 0 then
        redis.call('ZADD', KEYS[3], 'XX', unpack(changes))
    end
end

-- Notifies the head that the lock is free. A head of pyredisson gets an offer, too, unless it has one already.
-- `just_released`: the lock became free in this call, so an earlier offer doesn't count. Returns two values:
-- the head (nil: none was found); whether another call has to continue the search.
local function notify_head(place_lasts, just_released)
    local head, ours, _, more = living_head(not just_released)
    if not head then
        return nil, more
    end
    if ours then
        if just_released or not offered_at(head) then
            redis.call('HSET', KEYS[4], OFFERED_FIELD, text(now) .. ' ' .. head)
            local ahead = margin(redis.call('HGET', KEYS[4], MARGIN_FIELD), place_lasts)
            redis.call('ZADD', KEYS[3], 'XX', text(now + ahead), head)
        end
    else
        if tonumber(redis.call('ZSCORE', KEYS[3], head)) > now + place_lasts then
            -- Behind many waiters of pyredisson a score may lie far in the future. If this waiter of Redisson is dead,
            -- all others would wait until then.
            redis.call('ZADD', KEYS[3], 'XX', text(now + place_lasts), head)
        end
        -- When it releases the lock, perhaps no client of pyredisson is alive to adjust the scores.
        keep_front(place_lasts, -2)
    end
    publish(ARGV[1] .. ':' .. head, '0')
    return head, false
end
