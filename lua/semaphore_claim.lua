#!lua
-- Takes permits, once, for a waiter that has been passed over; or claims them, so that others leave it some.
--
-- KEYS[1]  the semaphore: a string, the free permits
-- KEYS[2]  the claim: how many permits, and for whom
-- KEYS[3]  the claims' period: it begins with the first claim and ends with the turn of the others
-- KEYS[4]  the lane's latest call
-- ARGV[1]  number of this call on its lane
-- ARGV[2]  how many
-- ARGV[3]  the waiter, by a name that only it has
-- ARGV[4]  the semaphore's channel
-- returns  above zero: so many were taken; else none were, which is not remembered: minus (how many are free for
--          those who need less, and 2^32 times the ms after which to ask again); -2^52: there is no semaphore
--
-- redis-cli --eval semaphore_claim.lua stock pyredisson_semaphore_claim:{stock} pyredisson_semaphore_turn:{stock} pyredisson_once:{stock}:me:1 , 2 4 me:1 redisson_sc:{stock}

-- include: once
local claim, turn, me = KEYS[2], KEYS[3], ARGV[3]
-- include: permit_claims
local free = redis.call('GET', KEYS[1])
if not free then
    return -2 ^ 52
end
free = tonumber(free)
local wanted = tonumber(ARGV[2])
local left = wanted <= free and held_back(free, wanted) or 0
if wanted > free or left > 0 then
    local again, claimed = make_claim(wanted)
    if claimed or left > 0 then
        free = 0
    end
    return -(math.max(free, 0) + again * 2 ^ 32)
end
once(wanted)
redis.call('DECRBY', KEYS[1], string.format('%.0f', wanted))
if redis.call('DEL', claim) == 1 and free > wanted then
    -- Others were told of these, and held back. pcall: a user without permission on the channel may acquire, too.
    redis.pcall('PUBLISH', ARGV[4], string.format('%.0f', free - wanted))
end
return wanted
