-- Included by the scripts of the fair lock, see fair_queue: what happens to the queue when its head acquires the lock.
-- Nothing in here needs the time.
local MEMORY = 3600000 -- ms for which an eviction is remembered
local OFFERED_FIELD = ':offered' -- field of KEYS[4]: when the free lock was offered, and to which waiter
local GRACE_FIELD = ':grace' -- field of KEYS[4]: until when no waiter counts as dead, because all clients were silent
local MARGIN_FIELD = ':margin' -- field of KEYS[4]: a margin above HEAD_MARGIN, and when it was raised

local function text(number)
    return string.format('%.0f', number)
end

local function has_left(asked_at)
    return tonumber(asked_at) <= 0
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
