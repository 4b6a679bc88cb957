-- Included by the scripts of the fair lock, see fair_queue: what happens to the queue when its head acquires the lock.
-- Nothing in here needs the time.
local MEMORY = 3600000 -- ms for which an eviction is remembered
local OFFERED_FIELD = ':offered' -- field of KEYS[4]: when the free lock was offered, and to which waiter
local GRACE_FIELD = ':grace' -- field of KEYS[4]: until when no waiter counts as dead, because all clients were silent
local MARGIN_FIELD = ':margin' -- field of KEYS[4]: a margin above HEAD_MARGIN, and when it was raised

local MOST = 2 ^ 53 -- beyond it, Lua can't tell a number from the next one

-- A number for a command, whole and finite: Redisson reads no other score.
local function text(number)
    return string.format('%.0f', math.max(-MOST, math.min(MOST, number)))
end

-- The number that a field of KEYS[4] holds; nil: none, or somebody else has written something else.
local function number_in(value)
    local number = tonumber(value)
    return number and math.abs(number) <= MOST and number or nil
end

-- When a waiter of pyredisson last asked for the lock; nil: it is a waiter of Redisson, or somebody else has written the
-- field. Then it keeps its place as one of Redisson does, until its client's next heartbeat.
local function when_asked(waiter)
    return number_in(redis.call('HGET', KEYS[4], waiter))
end

local function has_left(asked_at)
    return asked_at <= 0
end

-- Drops the owner at one end of the queue: `pop` is 'LPOP' or 'RPOP'.
local function drop(owner, pop)
    redis.call(pop, KEYS[2])
    redis.call('ZREM', KEYS[3], owner)
    if pop == 'LPOP' then
        redis.call('HDEL', KEYS[4], owner, OFFERED_FIELD)
    else
        redis.call('HDEL', KEYS[4], owner)
    end
end

-- Without a queue there are no scores. The clients are forgotten, too: then their next heartbeat makes their waiters
-- ask again and enter a new queue. So no waiter is stranded by the deletion of a queue.
local function forget_queue()
    redis.call('DEL', KEYS[3], KEYS[5])
    redis.call('HDEL', KEYS[4], GRACE_FIELD, ':cursor')
end

-- Takes the head out of the queue: it has acquired the lock.
local function leave_as_head(head)
    drop(head, 'LPOP')
    if redis.call('EXISTS', KEYS[2]) == 0 then
        forget_queue()
        -- KEYS[4] may still name waiters that Redisson has dropped. Only the margin is kept.
        local raised = redis.call('HGET', KEYS[4], MARGIN_FIELD)
        redis.call('DEL', KEYS[4])
        if raised then
            redis.call('HSET', KEYS[4], MARGIN_FIELD, raised)
            redis.call('PEXPIRE', KEYS[4], text(MEMORY))
        end
    end
end
