-- A piece of the read-write lock's scripts: where the lease of each hold of a reader stands.
-- Needs `lock`, the read-write lock's name, and `leases`, what the names of all its timeout keys begin with.

local function lease_key(reader, hold)
    return leases .. reader .. ':rwlock_timeout:' .. hold
end

-- How long a hold lasts, ms; below zero: it has ended. In its last millisecond PTTL says 0 of a lease that counts.
local function time_left(reader, hold)
    local left = redis.call('PTTL', lease_key(reader, hold))
    return left == 0 and 1 or left
end

-- The longest time that any hold of any reader has left, ms; 0: none has any.
local function longest_lease()
    local longest = 0
    local fields = redis.call('HGETALL', lock)
    for i = 1, #fields, 2 do
        -- Of `mode` there is no number; a writer's field has no timeout keys.
        for hold = 1, tonumber(fields[i + 1]) or 0 do
            longest = math.max(longest, time_left(fields[i], hold))
        end
    end
    return longest
end
