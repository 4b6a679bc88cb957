-- Shared by the scripts of the fair lock: who is next, and how he is told.
--
-- The queue and its scores are Redisson's. Our own waiters stand in KEYS[4] as well, with the time of their last
-- look (0 or less: gone), and don't live by their scores but by that look and by their client's ticks (KEYS[5]).
local ALIVE = 1500 -- ms for which a look or a tick is a sign of life
local OFFER = 2000 -- ms for which a free lock is kept for a head of ours
local HEAD = 8000 -- ms after which Redisson passes over a head of ours that nobody keeps up; more after an eviction
local KEEP = 7200000 -- ms for which our own keys outlive what they speak of, also if the clock steps forward
local LATE = 60000 -- ms for which a late copy of a command is to be expected
local MEMORY = 3600000 -- ms for which an eviction is remembered
local FRONT = 16 -- places whose scores are kept near to what they need
local DROPS = 200 -- heads that one call drops at most
local OFFERED = ':offered' -- field of KEYS[4]: when the free lock was offered, and to whom
local GRACE = ':grace' -- field of KEYS[4]: until when nobody is called dead, as all clients were silent
local MARGIN = ':margin' -- field of KEYS[4]: the present value of HEAD, and when it was raised

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function text(number)
    return string.format('%.0f', number)
end

local function is_gone(looked)
    return tonumber(looked) <= 0
end

local function drop(owner, pop)
    redis.call(pop, KEYS[2])
    redis.call('ZREM', KEYS[3], owner)
    redis.call('HDEL', KEYS[4], owner)
    if pop == 'LPOP' then
        redis.call('HDEL', KEYS[4], OFFERED)
    end
end

-- Without a queue there are no scores. Clients that are forgotten look again and queue anew, so that a queue which
-- somebody deleted strands nobody.
local function forget_queue()
    redis.call('DEL', KEYS[3], KEYS[5])
    redis.call('HDEL', KEYS[4], GRACE, ':cursor')
end

-- Those who gave up in the middle of the queue, and are now the last.
local function drop_gone_tail()
    local tail
    for _ = 1, DROPS do
        tail = redis.call('LINDEX', KEYS[2], -1)
        local looked = tail and redis.call('HGET', KEYS[4], tail)
        if not looked or not is_gone(looked) then
            break
        end
        drop(tail, 'RPOP')
    end
    if redis.call('EXISTS', KEYS[2]) == 0 then
        forget_queue()
        return nil
    end
    return tail
end

-- When the lock was offered to that owner, if it was and nobody else had the offer since.
local function offered_at(owner)
    local at, whom = string.match(redis.call('HGET', KEYS[4], OFFERED) or '', '^(%d+) (.*)$')
    -- The clock may have been set back.
    if whom == owner and tonumber(at) <= now then
        return tonumber(at)
    end
    return nil
end

-- If all clients were silent it may be the server that stood still, or its clock that stepped forward: then they
-- have the time of a sign of life to speak before anybody is called dead.
local function in_grace()
    local last = redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2]
    local till = tonumber(redis.call('HGET', KEYS[4], GRACE) or 0)
    if till > now + ALIVE then
        till = 0
    end
    if last and tonumber(last) < now and till < tonumber(last) then
        till = now + ALIVE
        redis.call('HSET', KEYS[4], GRACE, text(till))
    end
    return now < till
end

local ticks = {}

local function is_silent(owner, looked)
    if looked + ALIVE >= now then
        return false
    end
    local client = string.match(owner, '^[^:]*')
    ticks[client] = ticks[client] or redis.call('ZSCORE', KEYS[5], client) or '0'
    return tonumber(ticks[client]) < now
end

local function dead(owner, score, looked, free)
    if not score then
        return true
    end
    if not looked then
        -- Not ours: it keeps its turn by its score.
        return tonumber(score) <= now
    end
    if is_gone(looked) then
        return true
    end
    if is_silent(owner, looked) then
        return not in_grace()
    end
    local offered = free and offered_at(owner)
    return offered and offered + OFFER <= now and not in_grace()
end

-- Drops dead heads. Gives the head (nil: nobody waits), whether it is ours, whether any was dropped, and whether
-- there was no time for all of them: then another call has to go on.
local function living_head(free)
    for drops = 0, DROPS do
        local head = redis.call('LINDEX', KEYS[2], 0)
        if not head then
            forget_queue()
            return nil, false, drops > 0, false
        end
        local score = redis.call('ZSCORE', KEYS[3], head)
        local looked = redis.call('HGET', KEYS[4], head)
        if not dead(head, score, looked, free) then
            return head, looked and true or false, drops > 0, false
        end
        if drops == DROPS then
            break
        end
        drop(head, 'LPOP')
        if looked and not is_gone(looked) and not score then
            -- Somebody removed its score, but it may be alive and well: it queues anew.
            redis.pcall('PUBLISH', ARGV[1] .. ':' .. head, '0')
        end
    end
    return nil, false, true, true
end

-- How far ahead the score of a head of ours is kept.
local function margin(field)
    local ms, at = string.match(field or '', '^(%d+) (%d+)$')
    if ms and now < at + MEMORY then
        return tonumber(ms)
    end
    return HEAD
end

-- Keeps the scores of the first in line near to what they need: Redisson takes its own waiting time off every score
-- for each of its waiters that gets the lock, and drops a head by its score alone. A living waiter of ours is kept
-- ahead of that; one that dies is then dropped by Java soon after it has become the head, also if only Java waits.
local function keep_front(wait, left)
    local front = redis.call('LRANGE', KEYS[2], 0, FRONT - 1)
    if #front == 0 then
        return
    end
    local scores = redis.call('ZMSCORE', KEYS[3], unpack(front))
    local looked = redis.call('HMGET', KEYS[4], MARGIN, unpack(front))
    local ahead, needs, changes = margin(looked[1]), now, {}
    for i, owner in ipairs(front) do
        local score, look = tonumber(scores[i] or nil), looked[i + 1]
        local new = score
        -- One of Redisson's that waits for longer than `wait` takes more off. Only such a one explains more than this.
        local most = needs + 3 * wait + math.max(left, 0) + LATE
        if not look then
            needs = score and score > most and score or needs + wait
        elseif score and is_gone(look) then
            new = math.min(score, needs)
        elseif score and score > needs + ahead then
            new = (needs == now or score <= most + ahead) and needs + ahead or score
        elseif score and score < needs + ahead - 1000 and not is_silent(owner, look) then
            new = needs + ahead
        end
        if new ~= score then
            changes[#changes + 1] = text(new)
            changes[#changes + 1] = owner
        end
    end
    if #changes > 0 then
        redis.call('ZADD', KEYS[3], 'XX', unpack(changes))
    end
end

-- Tells the head that the lock is free. `fresh`: it has only now become so. Gives the head, if there is one, and
-- whether another call has to go on looking for it.
local function hand_off(wait, fresh)
    local head, ours, _, more = living_head(not fresh)
    if not head then
        return nil, more
    end
    if ours then
        if fresh or not offered_at(head) then
            redis.call('HSET', KEYS[4], OFFERED, text(now) .. ' ' .. head)
            local ahead = margin(redis.call('HGET', KEYS[4], MARGIN))
            redis.call('ZADD', KEYS[3], 'XX', text(now + ahead), head)
        end
    else
        if tonumber(redis.call('ZSCORE', KEYS[3], head)) > now + wait then
            -- Behind many of ours a score may lie far ahead, and hold up everybody if it is a dead one's.
            redis.call('ZADD', KEYS[3], 'XX', text(now + wait), head)
        end
        -- When it gives the lock back, nobody of ours may be alive.
        keep_front(wait, -2)
    end
    -- pcall: a user without permission on the channel must still be able to release.
    redis.pcall('PUBLISH', ARGV[1] .. ':' .. head, '0')
    return head, false
end
