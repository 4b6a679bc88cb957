#!lua
-- Acquires permits, exactly once, for a waiter that was passed over.
-- If that is impossible it claims them: then other callers leave it that many.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the claim: the number of permits, and the claimant
-- KEYS[3]  the period of the claims: it begins with the first claim, and ends with the turn of the others
-- KEYS[4]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits
-- ARGV[3]  the waiter, by a name that no other waiter has
-- ARGV[4]  the semaphore's channel
-- returns  above zero: so many were acquired. Otherwise none were, which is not recorded:
--          -(f + 2^32 * t), where f is the number of permits that waiters with a smaller need may acquire, and t the
--          time in ms after which to ask again; -2^52: there is no semaphore
--
-- Idempotent: a copy of a successful call is answered with the recorded result (see exactly_once), and a second claim
-- replaces the first.
--
-- redis-cli --eval semaphore_claim.lua stock pyredisson_semaphore_claim:{stock} pyredisson_semaphore_turn:{stock} pyredisson_once:{stock}:me:1 , 2 4 me:1 redisson_sc:{stock}

-- include: publish
-- include: exactly_once
-- include: number_of
local claim, claims_period, caller = KEYS[2], KEYS[3], ARGV[3]
-- include: permit_claims
local free = number_of(KEYS[1])
if free == false then
    return NO_NUMBER
end
if not free then
    return -2 ^ 52
end
local wanted = tonumber(ARGV[2])
local remaining = wanted <= free and held_back(free, wanted) or 0
if wanted > free or remaining > 0 then
    local ask_again, claimed = make_claim(wanted)
    if claimed or remaining > 0 then
        free = 0
    end
    return -(math.max(free, 0) + ask_again * 2 ^ 32)
end
record(wanted)
redis.call('DECRBY', KEYS[1], string.format('%.0f', wanted))
if redis.call('DEL', claim) == 1 and free > wanted then
    -- Because of the claim, other waiters left these permits when they were notified.
    publish(ARGV[4], string.format('%.0f', free - wanted))
end
return wanted
