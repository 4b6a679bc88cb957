#!lua
-- Counts a semaphore's permits, when those that have ended are free again.
--
-- KEYS[1]  the semaphore: its free permits
-- KEYS[2]  its permits in use: a sorted set, id -> when it ends, ms
-- ARGV[1]  its channel
-- returns  how many are free (nil: the semaphore has never had any), how many are in use
--
-- redis-cli --eval permit_count.lua p {p}:timeout , redisson_sc:{p}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local free = redis.call('GET', KEYS[1])
local ended = redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, string.format('%.0f', now))
if ended > 0 then
    free = redis.call('INCRBY', KEYS[1], ended)
    if free > 0 then
        -- pcall: a user without permission on the channel may look all the same.
        redis.pcall('PUBLISH', ARGV[1], string.format('%.0f', free))
    end
end
return {tonumber(free) or false, redis.call('ZCOUNT', KEYS[2], 0, '+inf')}
