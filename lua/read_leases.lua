-- Included by the scripts of the read-write lock: the lease of each hold of a reader, which is a key of its own.
-- Needs `lock`, the name of the read-write lock, and `leases`, the prefix of the names of all its timeout keys.

local function lease_key(reader, hold)
    return leases .. reader .. ':rwlock_timeout:' .. hold
end

-- The remaining lease of a hold, ms; below zero: it has ended. PTTL returns 0 in the last millisecond of a lease, in
-- which the hold is still valid.
local function time_left(reader, hold)
    local remaining = redis.call('PTTL', lease_key(reader, hold))
    return remaining == 0 and 1 or remaining
end

-- The longest remaining lease of all holds of all readers, ms; 0: all have ended.
local function longest_lease()
    local longest = 0
    local fields = redis.call('HGETALL', lock)
    for i = 1, #fields, 2 do
        -- The value of `mode` is no number. A writer's field has no timeout keys.
        for hold = 1, tonumber(fields[i + 1]) or 0 do
            longest = math.max(longest, time_left(fields[i], hold))
        end
    end
    return longest
end
