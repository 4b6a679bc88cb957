#!lua
-- Returns the remaining lease of a permit, or sets a new one.
--
-- KEYS[1]  a semaphore's permits in use: a sorted set, id -> when it ends, ms (922337203685477: never)
-- ARGV[1]  the permit's id
-- ARGV[2]  optional: its lease from now on, ms (-1: endless)
-- returns  nil: the permit is unknown or has ended; otherwise its remaining lease, ms (-1: endless)
--
-- Idempotent: a second run sets the same lease, counted from its own time.
--
-- redis-cli --eval permit_lease.lua {p}:timeout , 0123456789abcdef 30000
local forever = 922337203685477
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)
if ends < now then
    return false
end
if ARGV[2] then
    ends = forever
    if ARGV[2] ~= '-1' then
        ends = math.min(now + ARGV[2], forever)
    end
    redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', ends), ARGV[1])
end
if ends >= forever then
    return -1
end
return math.max(math.ceil(ends - now), 1)
