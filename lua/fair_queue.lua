-- Included by the scripts of the fair lock: which waiter is next, and how it is notified.
--
-- The queue and its scores (KEYS[2], KEYS[3]) are Redisson's. KEYS[4] holds the waiters of pyredisson with the time at
-- which they last asked for the lock (0 or less: the waiter has left). Whether such a waiter is alive doesn't depend on
-- its score, but on that time and on the heartbeat of its client (KEYS[5]).
local ALIVE = 1500 -- ms for which an acquire command or a heartbeat is a sign of life
local OFFER = 2000 -- ms for which a free lock is reserved for a head that is a waiter of pyredisson
local HEAD = 8000 -- ms after which Redisson drops a dead waiter of pyredisson at the head; more after an eviction
local KEEP = 7200000 -- ms for which pyredisson's keys outlive the lock's lease, also if the clock steps forward
local LATE = 60000 -- ms within which a late copy of a command may arrive
local MEMORY = 3600000 -- ms for which an eviction is remembered
local FRONT = 16 -- number of places whose scores `keep_front` adjusts
local DROPS = 200 -- number of dead heads that one call drops at most
local OFFERED = ':offered' -- field of KEYS[4]: when the free lock was offered, and to which waiter
local GRACE = ':grace' -- field of KEYS[4]: until when no waiter counts as dead, because all clients were silent
local MARGIN = ':margin' -- field of KEYS[4]: the raised value of HEAD, and when it was raised

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

-- Without a queue there are no scores. The clients are forgotten, too: then their next heartbeat makes their waiters
-- ask again and enter a new queue. So no waiter is stranded by the deletion of a queue.
local function forget_queue()
    redis.call('DEL', KEYS[3], KEYS[5])
    redis.call('HDEL', KEYS[4], GRACE, ':cursor')
end

-- Drops waiters that have left, from one end of the queue. `place` and `pop` are 0 and 'LPOP', or -1 and 'RPOP'.
-- Returns the waiter that is at that end now, and whether any was dropped.
local function drop_gone(place, pop)
    local waiter
    local dropped = false
    for _ = 1, DROPS do
        waiter = redis.call('LINDEX', KEYS[2], place)
        local looked = waiter and redis.call('HGET', KEYS[4], waiter)
        if not looked or not is_gone(looked) then
            break
        end
        drop(waiter, pop)
        dropped = true
    end
    if redis.call('EXISTS', KEYS[2]) == 0 then
        forget_queue()
        return nil, dropped
    end
    return waiter, dropped
end

-- When the lock was offered to this owner; nil: it wasn't, or another owner got the offer since.
local function offered_at(owner)
    local at, whom = string.match(redis.call('HGET', KEYS[4], OFFERED) or '', '^(%d+) (.*)$')
    -- The clock may have been set back.
    if whom == owner and tonumber(at) <= now then
        return tonumber(at)
    end
    return nil
end

-- If all clients were silent, the server may have been paused, or its clock may have stepped forward. Then no waiter
-- counts as dead for another 1.5 s (ALIVE), so that the clients can send a heartbeat first.
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

local heartbeats = {}

local function is_silent(owner, looked)
    if looked + ALIVE >= now then
        return false
    end
    local client = string.match(owner, '^[^:]*')
    heartbeats[client] = heartbeats[client] or redis.call('ZSCORE', KEYS[5], client) or '0'
    return tonumber(heartbeats[client]) < now
end

local function dead(owner, score, looked, free)
    if not score then
        return true
    end
    if not looked then
        -- A waiter of Redisson keeps its turn as long as its score says.
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

-- Drops dead heads. Returns the living head (nil: nobody waits), whether it is a waiter of pyredisson, whether any was
-- dropped, and whether there are more than one call may drop: then another call has to continue.
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
            -- Only its score was removed, so the waiter may be alive: the message makes it enter the queue again.
            redis.pcall('PUBLISH', ARGV[1] .. ':' .. head, '0')
        end
    end
    return nil, false, true, true
end

-- How far in the future the score of a head is kept that is a waiter of pyredisson, ms.
local function margin(field)
    local ms, at = string.match(field or '', '^(%d+) (%d+)$')
    if ms and now < at + MEMORY then
        return tonumber(ms)
    end
    return HEAD
end

-- Adjusts the scores of the first places. Redisson subtracts its own waiting time from every score whenever one of its
-- waiters acquires the lock, and drops a head only by its score. So the score of a living waiter of pyredisson is kept
-- just high enough that Redisson doesn't drop it. If the waiter dies, Redisson drops it soon after it has become the
-- head, also if no client of pyredisson is alive.
local function keep_front(wait, remaining)
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
        -- The highest plausible score. Only a waiter of Redisson with a waiting time above `wait` explains more.
        local most = needs + 3 * wait + math.max(remaining, 0) + LATE
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

-- Notifies the head that the lock is free. `fresh`: it became free in this call. Returns the head (nil: none was
-- found), and whether another call has to continue the search.
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
            -- Behind many waiters of pyredisson a score may lie far in the future. If this waiter of Redisson is dead,
            -- all others would wait until then.
            redis.call('ZADD', KEYS[3], 'XX', text(now + wait), head)
        end
        -- When it releases the lock, perhaps no client of pyredisson is alive to adjust the scores.
        keep_front(wait, -2)
    end
    -- pcall: a user that may not publish on the channel must still be able to release.
    redis.pcall('PUBLISH', ARGV[1] .. ':' .. head, '0')
    return head, false
end
