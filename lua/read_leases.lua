-- Included by the scripts of the read-write lock: each level of a reader's hold has a lease of its own. A
-- lease is a key with an expiry (the lease key, in Redisson `rwlock_timeout`). Needs `lock`, the name of the read-write
-- lock, and `leases`, the prefix of the names of all its lease keys.

local function lease_key(reader, level)
    return leases .. reader .. ':rwlock_timeout:' .. level
end

-- The remaining lease of a level, ms; below zero: it has ended. PTTL returns 0 in the last millisecond of a lease, in
-- which the level is still valid.
local function remaining_lease(reader, level)
    local remaining = redis.call('PTTL', lease_key(reader, level))
    return remaining == 0 and 1 or remaining
end

-- The longest remaining lease of all levels of all readers, ms; 0: all have ended.
local function longest_lease()
    local longest = 0
    local fields = redis.call('HGETALL', lock)
    for i = 1, #fields, 2 do
        -- The value of `mode` is no number. A writer's field has no lease keys.
        for level = 1, tonumber(fields[i + 1]) or 0 do
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
