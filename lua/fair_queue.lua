-- Shared by the scripts of the fair lock: who is next, and how he is told.
--
-- The queue and its scores are Redisson's. Our own waiters stand in KEYS[4] as well, with the time of their last
-- look (0: gone), and don't live by their scores but by that look and by their client's ticks (KEYS[5]).
local ALIVE = 1500 -- ms for which a look or a tick is a sign of life
local OFFER = 2000 -- ms for which a free lock is kept for a head of ours
local HEAD = 5000 -- ms after which Redisson passes over a head of ours that nobody keeps up
local KEEP = 600000 -- ms for which our own keys outlive what they speak of
local LATE = 60000 -- ms for which a late copy of a command is to be expected
local OFFERED = ':offered' -- field of KEYS[4]: when the free lock was offered, and to whom

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function text(number)
    return string.format('%.0f', number)
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
end

-- Those who gave up in the middle of the queue, and are now the last.
local function drop_gone_tail()
    local tail = redis.call('LINDEX', KEYS[2], -1)
    while tail and redis.call('HGET', KEYS[4], tail) == '0' do
        drop(tail, 'RPOP')
        tail = redis.call('LINDEX', KEYS[2], -1)
    end
    if not tail then
        forget_queue()
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

local function dead(owner, score, looked, free)
    if not score then
        return true
    end
    if not looked then
        -- Not ours: it keeps its turn by its score.
        return tonumber(score) <= now
    end
    if looked == '0' then
        return true
    end
    if looked + ALIVE < now then
        local tick = redis.call('ZSCORE', KEYS[5], string.match(owner, '^[^:]*'))
        if not tick or tonumber(tick) < now then
            return true
        end
    end
    local offered = free and offered_at(owner)
    return offered and offered + OFFER <= now
end

-- Drops dead heads. Gives the head (nil: nobody waits), whether it is ours, and whether any was dropped.
local function living_head(free)
    local dropped = false
    while true do
        local head = redis.call('LINDEX', KEYS[2], 0)
        if not head then
            forget_queue()
            return nil, false, dropped
        end
        local score = redis.call('ZSCORE', KEYS[3], head)
        local looked = redis.call('HGET', KEYS[4], head)
        if not dead(head, score, looked, free) then
            return head, looked and true or false, dropped
        end
        drop(head, 'LPOP')
        if looked and looked ~= '0' and not score then
            -- Somebody removed its score, but it may be alive and well: it queues anew.
            redis.pcall('PUBLISH', ARGV[1] .. ':' .. head, '0')
        end
        dropped = true
    end
end

-- Tells the head that the lock is free. `fresh`: it has only now become so. Gives the head, if there is one.
local function hand_off(wait, fresh)
    local head, ours = living_head(not fresh)
    if not head then
        return nil
    end
    if ours then
        if fresh or not offered_at(head) then
            redis.call('HSET', KEYS[4], OFFERED, text(now) .. ' ' .. head)
            redis.call('ZADD', KEYS[3], 'XX', text(now + HEAD), head)
        end
    elseif tonumber(redis.call('ZSCORE', KEYS[3], head)) > now + wait then
        -- Behind many of ours a score may lie far ahead, and hold up everybody if it is a dead one's.
        redis.call('ZADD', KEYS[3], 'XX', text(now + wait), head)
    end
    -- pcall: a user without permission on the channel must still be able to release.
    redis.pcall('PUBLISH', ARGV[1] .. ':' .. head, '0')
    return head
end
