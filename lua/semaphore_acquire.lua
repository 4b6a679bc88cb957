#!lua
-- Takes permits, once.
--
-- KEYS[1]  the semaphore: a string, the free permits (below zero: so many must come back before one is free)
-- KEYS[2]  the claim of a waiter that wants several: others leave it some
-- KEYS[3]  the lane's latest call
-- ARGV[1]  number of this call on its lane
-- ARGV[2]  how many; 0: all that are free, claimed or not
-- returns  above zero: so many were taken; else none were, which is not remembered: minus (how many are free, and
--          2^32 times the ms for which they are claimed by somebody else, who comes first: then none count as free); -2^52: there is no semaphore
--
-- redis-cli --eval semaphore_acquire.lua stock pyredisson_semaphore_claim:{stock} pyredisson_once:{stock}:me:1 , 2 1

-- include: once
local claim, turn, me = KEYS[2], nil, ''
-- include: permit_claims
local free = redis.call('GET', KEYS[1])
if not free then
    return -2 ^ 52
end
free = tonumber(free)
local wanted = tonumber(ARGV[2])
if wanted == 0 then
    wanted = free
elseif wanted <= free then
    local left = held_back(free, wanted)
    if left > 0 then
        return -left * 2 ^ 32
    end
end
if wanted <= 0 or wanted > free then
    return -math.max(free, 0)
end
once(wanted)
redis.call('DECRBY', KEYS[1], string.format('%.0f', wanted))
return wanted
