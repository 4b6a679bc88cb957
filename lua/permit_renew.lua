#!lua flags=allow-oom
-- Renews the leases of many permits, of any semaphores, each only if it hasn't ended.
--
-- KEYS[i]    a semaphore's permits in use: a sorted set, id -> when it ends, ms
-- ARGV[1]    the lease, ms; 0: nothing is changed, the reply only says which permits are in use
-- ARGV[i+1]  the id of the permit in KEYS[i]
-- returns    for each permit 1: in use, and renewed; 0: it is unknown or has ended
--
-- Idempotent: a lease is only ever extended.
--
-- redis-cli --eval permit_renew.lua {p}:timeout {p}:timeout , 30000 0123456789abcdef fedcba9876543210
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = now + ARGV[1]
local renewed = {}
for i, permits in ipairs(KEYS) do
    -- pcall: a key of a wrong type is no semaphore, and must not prevent the renewal of the other permits.
    local before = redis.pcall('ZSCORE', permits, ARGV[i + 1])
    renewed[i] = 0
    -- ZSCORE gave a number as a string, or false, or an error as a table.
    if type(before) == 'string' and tonumber(before) >= now then
        -- Never shortened: this may be a late copy.
        if tonumber(before) < ends then
            -- It removes nothing. A Redis before 7 without memory refuses a ZADD unless the script has written before.
            redis.call('ZREM', permits, '')
            redis.call('ZADD', permits, 'XX', string.format('%.0f', ends), ARGV[i + 1])
        end
        renewed[i] = 1
    end
end
return renewed
