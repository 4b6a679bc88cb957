#!lua
-- Takes a fair lock if it is the owner's turn, or counts one more hold of its holder; else gets in line.
--
-- KEYS[1]  the lock: a hash, owner -> holds
-- KEYS[2]  its queue: a list of owners, the next one first
-- KEYS[3]  their scores: a zset, owner -> until when Redisson keeps its place, ms of server time
-- KEYS[4]  our own waiters: a hash, owner -> when it last looked, ms (0 or less: it is gone)
-- KEYS[5]  our own clients: a zset, client -> until when it counts as alive, ms
-- ARGV[1]  its channel; a waiter listens to this one, a colon, and its own name
-- ARGV[2]  owner
-- ARGV[3]  holds that the owner has after this call (1: a fresh hold); absolute, so a second run changes nothing
-- ARGV[4]  lease, ms
-- ARGV[5]  how long a place in the queue lasts by Redisson's rules, ms
-- ARGV[6]  1: get in line; 0: only try
-- returns  nil: taken; else the time left to whoever holds it, ms (-1: endless; when it is free, but another's turn:
--          how long that one has for taking it);
--          -2: a further hold was asked for, but this owner doesn't hold the lock, so its earlier hold is lost;
--          -3: many dead waiters had to be dropped, and there are more: to be sent again at once
--
-- redis-cli --eval fair_acquire.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} me:1 1 30000 300000 1
local left = redis.call('PTTL', KEYS[1])
if left ~= -2 and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
    redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
    -- An inner hold never shortens the lease of an outer one.
    if left < tonumber(ARGV[4]) then
        redis.call('PEXPIRE', KEYS[1], ARGV[4])
    end
    return false
end
if ARGV[3] ~= '1' then
    return -2
end
-- include: fair_queue
local owner, wait = ARGV[2], tonumber(ARGV[5])
local looked = redis.call('HGET', KEYS[4], owner)
if looked and is_gone(looked) then
    -- A late copy of one who gave up.
    return left == -2 and OFFER or left
end

-- A waiter of ours has lost its place, to a client whose clock is ahead or that takes much off the scores: the next
-- ones get more time.
local function was_evicted()
    local field = redis.call('HGET', KEYS[4], MARGIN)
    local at = tonumber(string.match(field or '', ' (%d+)$') or 0)
    if math.abs(now - at) < 1000 then
        -- One of several that were evicted together.
        return
    end
    local ms = margin(field)
    if redis.call('EXISTS', KEYS[2]) == 1 then
        ms = math.max(ms, math.min(ms * 4, 3 * wait))
    end
    redis.call('HSET', KEYS[4], MARGIN, text(ms) .. ' ' .. text(now))
end

-- Our waiters are kept as long as the lock is held, and longer.
local function look()
    redis.call('HSET', KEYS[4], owner, text(now))
    redis.call('PEXPIRE', KEYS[4], text(KEEP + math.max(left, 0)))
end

-- Whoever calls is alive. While it waits its score stays as far ahead as it was: Redisson takes its own waiting
-- time off every score for each of its waiters that gets the lock.
local function stay()
    local score = redis.call('ZSCORE', KEYS[3], owner)
    if score and looked and tonumber(looked) < now then
        redis.call('ZADD', KEYS[3], 'XX', text(score + now - looked), owner)
    end
    if score then
        look()
    end
    return score
end

if left == -2 then
    local head, _, dropped, more = redis.call('LINDEX', KEYS[2], 0), nil, false, false
    if head ~= owner then
        stay()
        head, _, dropped, more = living_head(true)
        if more then
            return -3
        end
    end
    if not head or head == owner then
        redis.call('HSET', KEYS[1], owner, 1)
        redis.call('PEXPIRE', KEYS[1], ARGV[4])
        if head then
            drop(head, 'LPOP')
            if redis.call('EXISTS', KEYS[2]) == 0 then
                forget_queue()
                -- Of those whom Redisson dropped.
                local raised = redis.call('HGET', KEYS[4], MARGIN)
                redis.call('DEL', KEYS[4])
                if raised then
                    redis.call('HSET', KEYS[4], MARGIN, raised)
                    redis.call('PEXPIRE', KEYS[4], text(MEMORY))
                end
            end
        end
        return false
    end
    if dropped then
        hand_off(wait, false)
    end
    left = OFFER
end
if ARGV[6] ~= '1' then
    return left
end
local tail = drop_gone_tail()
local place = 0
if not stay() then
    if looked then
        was_evicted()
    end
    local soonest = now + math.max(left, 0)
    local score = soonest + wait
    if tail then
        local last = tonumber(redis.call('ZSCORE', KEYS[3], tail) or soonest)
        if redis.call('HEXISTS', KEYS[4], tail) == 1 then
            score = math.max(last, score)
        else
            score = math.max(last, soonest) + wait
        end
    end
    place = redis.call('RPUSH', KEYS[2], owner)
    if place == FRONT + 1 then
        -- From here on scores aren't kept near, and must last from one look to the next.
        score = score + wait
    end
    redis.call('ZADD', KEYS[3], text(score), owner)
    if offered_at(owner) then
        -- At a former place, which Redisson has dropped.
        redis.call('HDEL', KEYS[4], OFFERED)
    end
    look()
end
if place <= FRONT then
    keep_front(wait, left)
end
return left
