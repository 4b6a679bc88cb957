#!lua
-- Takes permits, once.
--
-- KEYS[1]  the semaphore: a string, the free permits (below zero: so many must come back before one is free)
-- KEYS[2]  the lane's latest call
-- ARGV[1]  number of this call on its lane
-- ARGV[2]  how many; 0: all that are free
-- returns  above zero: so many were taken; else none were, and minus so many are free, which is not remembered
--
-- redis-cli --eval semaphore_acquire.lua stock pyredisson_once:{stock}:me:1 , 2 1

-- include: once
local free = tonumber(redis.call('GET', KEYS[1]) or 0)
local wanted = tonumber(ARGV[2])
if wanted == 0 then
    wanted = free
end
if wanted <= 0 or wanted > free then
    return -math.max(free, 0)
end
once(wanted)
redis.call('DECRBY', KEYS[1], string.format('%.0f', wanted))
return wanted
