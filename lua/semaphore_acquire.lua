#!lua
-- Acquires permits, exactly once.
--
-- KEYS[1]  the semaphore: a string, the number of free permits (negative: so many must be released before one is free)
-- KEYS[2]  the claim of a waiter that wants several permits: other callers leave it that many
-- KEYS[3]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits; 0: all that are free, claimed or not
-- returns  above zero: so many were acquired. Otherwise none were, which is not recorded:
--          -(f + 2^32 * t), where f is the number of free permits, and t the time in ms for which they are claimed by
--          another waiter, which comes first (f is 0 then); -2^52: there is no semaphore
--
-- Idempotent: a copy of a successful call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_acquire.lua stock pyredisson_semaphore_claim:{stock} pyredisson_once:{stock}:me:1 , 2 1

-- include: exactly_once
-- include: number_of
local claim, claims_period, caller = KEYS[2], nil, ''
-- include: permit_claims
local free = number_of(KEYS[1])
if free == false then
    return NO_NUMBER
end
if not free then
    return -2 ^ 52
end
local wanted = tonumber(ARGV[2])
if wanted == 0 then
    wanted = free
elseif wanted <= free then
    local remaining = held_back(free, wanted)
    if remaining > 0 then
        return -remaining * 2 ^ 32
    end
end
if wanted <= 0 or wanted > free then
    return -math.max(free, 0)
end
record(wanted)
redis.call('DECRBY', KEYS[1], string.format('%.0f', wanted))
return wanted
