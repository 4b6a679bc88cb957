-- Included by the scripts of the read-write lock: each level of a reader's hold has a lease of its own. A
-- lease is a key with an expiry (the lease key, in Redisson `rwlock_timeout`). Needs `lock`, the name of the read-write
-- lock, and `leases`, the prefix of the names of all its lease keys.

local MOST_LEVELS = 1000 -- of one reader
local ENDLESS = 2 ^ 53 -- ms; no command gets a larger number
local MOST_LOOKS = 10000 -- number of lease keys that one call looks at for the longest lease

-- How many levels a reader's field states; 0: there is no field. Any other value than 1 to 1000 was written by somebody
-- else: then the reader counts as one that may have every level, so a reader that has a lease is never overlooked. The
-- second value: whether that is so.
local function levels_of(value)
    local levels = tonumber(value)
    if not value then
        return 0, false
    elseif not levels or levels < 1 or levels > MOST_LEVELS or levels % 1 ~= 0 then
        return MOST_LEVELS, true
    end
    return levels, false
end

local function lease_key(reader, level)
    return leases .. reader .. ':rwlock_timeout:' .. level
end

-- The remaining lease of a level, ms; below zero: it has ended. PTTL returns 0 in the last millisecond of a lease, in
-- which the level is still valid.
local function remaining_lease(reader, level)
    local remaining = redis.call('PTTL', lease_key(reader, level))
    return remaining == 0 and 1 or math.min(remaining, ENDLESS)
end

-- The longest remaining lease of all levels of all readers, ms; 0: all have ended. If there are too many to look at, the
-- lock lasts as long as it does.
local function longest_lease()
    local longest, looks = 0, 0
    local fields = redis.call('HGETALL', lock)
    for i = 1, #fields, 2 do
        local has_leases = fields[i] ~= 'mode' and string.sub(fields[i], -6) ~= ':write'
        local levels = has_leases and levels_of(fields[i + 1]) or 1
        looks = looks + levels
        if looks > MOST_LOOKS then
            local lasts = redis.call('PTTL', lock)
            return math.max(longest, lasts < 0 and ENDLESS or math.min(lasts, ENDLESS), 1)
        end
        for level = 1, has_leases and levels or 0 do
            longest = math.max(longest, remaining_lease(fields[i], level))
        end
    end
    return longest
end

-- Whether one of a few readers, chosen at random, has a lease that ends when the lock does, or up to 10 ms before. Then the
-- lock lasts for a reader, and the leases of all readers needn't be read: where many read at once, most leases are as long.
local function any_lease_lasts(lasts)
    for _ = 1, 3 do
        local remaining = remaining_lease(redis.call('HRANDFIELD', lock), 1)
        if remaining > 0 and remaining <= lasts and remaining >= lasts - 10 then
            return true
        end
    end
    return false
end

-- Removes the fields of all readers and writers. Only the mode remains.
local function remove_readers()
    for _, field in ipairs(redis.call('HKEYS', lock)) do
        if field ~= 'mode' then
            redis.call('HDEL', lock, field)
        end
    end
end
