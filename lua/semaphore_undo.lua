#!lua flags=allow-oom
-- Gives back what an acquire took whose outcome nobody waits for any more, and keeps late copies of it from running.
--
-- KEYS[1]  the semaphore: a string, the free permits
-- KEYS[2]  the lane's latest call
-- ARGV[1]  one more than the number of that acquire on its lane
-- ARGV[2]  the semaphore's channel
-- returns  how many permits were given back
--
-- redis-cli --eval semaphore_undo.lua stock pyredisson_once:{stock}:me:1 , 3 redisson_sc:{stock}

-- include: once
once(0)
-- A semaphore that was deleted meanwhile doesn't come back.
if tonumber(last) ~= tonumber(ARGV[1]) - 1 or redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
local free = redis.call('INCRBY', KEYS[1], outcome)
if free > 0 then
    redis.pcall('PUBLISH', ARGV[2], string.format('%.0f', free))
end
return tonumber(outcome)
