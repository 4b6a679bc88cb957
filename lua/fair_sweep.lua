-- Included after fair_queue by the scripts of the fair lock that remove the remains of other waiters.
local UNSEEN = 600000 -- ms after which a waiter without a place in the queue is forgotten
local SLICE = 32 -- number of fields of KEYS[4] that one call examines
local CURSOR_FIELD = ':cursor' -- field of KEYS[4]: where the next `sweep` continues

-- Removes some waiters that left the middle of the queue, and the fields of waiters that have no place any more.
local function sweep()
    local cursor = redis.call('HGET', KEYS[4], CURSOR_FIELD)
    -- Any other value was written by somebody else.
    local is_cursor = cursor and string.find(cursor, '^%d+$') and #cursor < 20
    local reply = redis.call('HSCAN', KEYS[4], is_cursor and cursor or '0', 'COUNT', SLICE)
    local fields = reply[2]
    -- Searching the queue takes time: at most about 10000 elements are examined.
    local length = redis.call('LLEN', KEYS[2])
    local searches = length > 10000 and 0 or math.min(SLICE, math.ceil(10000 / (length + 1)))
    for i = 1, #fields, 2 do
        local owner, asked_at = fields[i], number_in(fields[i + 1])
        if asked_at and (asked_at <= 0 or asked_at + UNSEEN < now) then
            local has_place = redis.call('ZSCORE', KEYS[3], owner)
            if has_place and asked_at <= 0 and searches > 0 and redis.call('LINDEX', KEYS[2], 0) ~= owner then
                searches = searches - 1
                redis.call('LREM', KEYS[2], 1, owner)
                redis.call('ZREM', KEYS[3], owner)
                has_place = false
            end
            -- A negative value keeps out late copies of an acquire until its time has come (see fair_leave). That time is
            -- near, unless somebody else has written the field.
            if not has_place and (asked_at + now >= 0 or asked_at + now < -KEEP) then
                redis.call('HDEL', KEYS[4], owner)
            end
        end
    end
    if redis.call('EXISTS', KEYS[4]) == 1 and reply[1] ~= '0' then
        redis.call('HSET', KEYS[4], CURSOR_FIELD, reply[1])
    else
        redis.call('HDEL', KEYS[4], CURSOR_FIELD)
    end
end
