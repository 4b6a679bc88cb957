#!lua
-- Acquires permits, exactly once. What can't be acquired now may be claimed: then other callers leave the caller that many.
--
-- KEYS[1]  the semaphore: a string, the number of free permits (negative: so many must be released before one is free)
-- KEYS[2]  the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]  the clients that were woken: a sorted set
-- KEYS[4]  the claim of a waiter that wants several permits: others leave it that many
-- KEYS[5]  the period of the claims: it begins with the first claim, and ends with the turn of the others
-- KEYS[6]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits; 0: all that are free, claimed or not
-- ARGV[3]  the semaphore's channel
-- ARGV[4]  for how long others may come before a woken client, us since it came
-- ARGV[5]  the names as which the client may be in the list, with spaces between them
-- ARGV[6]  as which the client waits in the list if it is refused; empty: its caller doesn't wait
-- ARGV[7]  as which its other callers wait in the list if it acquires the permits; empty: there are none
-- ARGV[8]  for how long the list lasts, ms
-- ARGV[9]  the waiter that claims permits, by a name that no other waiter has; empty: it doesn't claim
-- returns  above zero: so many were acquired. Otherwise none were, which is not recorded:
--          -(f + 2^32 * t + 2^46 * p), where f is the number of permits that waiters with a smaller need may acquire, t the time
--          in ms after which to ask again (0: no such time), and p how many clients stand before this one in the list, at
--          most 63; -2^52: there is no semaphore
--
-- Idempotent: a copy of a successful call is answered with the recorded result (see exactly_once), and entering the list or
-- claiming once more replaces the first time.
--
-- redis-cli --eval semaphore_acquire.lua stock pyredisson_waiting:{stock} pyredisson_woken:{stock} pyredisson_semaphore_claim:{stock} pyredisson_semaphore_turn:{stock} pyredisson_once:{stock}:me:1 , 2 1 redisson_sc:{stock} 5000 '' me:1:1 '' 60000 ''

-- include: exactly_once
-- include: free_permits
local wanted = tonumber(ARGV[2])
if wanted == 0 then
    wanted = math.max(free or 0, 0)
end
if free and wanted > 0 and wanted <= free and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0 and ARGV[7] == '' then
    -- The usual case, without all that a list needs.
    record(wanted)
    redis.call('DECRBY', KEYS[1], string.format('%.0f', wanted))
    return wanted
end
-- include: publish
local waiting, woken, claim, claims_period = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local channel, patience, caller = ARGV[3], ARGV[4], ARGV[9]
-- include: permit_wait_in_list
local ask_again = 0
if free and wanted > 0 and wanted <= free and ARGV[2] ~= '0' then
    ask_again = held_back(free, wanted)
    if ask_again == 0 then
        ask_again = reserved_for_others(free, wanted, client_of(ARGV[6] .. ARGV[5]))
    end
end
if free and wanted > 0 and wanted <= free and ask_again == 0 then
    -- Before anything is changed: it fails if the key has another type.
    local listed = redis.call('ZCARD', waiting) > 0
    record(wanted)
    free = redis.call('DECRBY', KEYS[1], string.format('%.0f', wanted))
    local claimed = caller ~= '' and redis.call('DEL', claim) == 1
    arrive(listed, ARGV[5] .. ' ' .. ARGV[6], ARGV[7], ARGV[8], free)
    if claimed then
        -- Because of the claim, others left these permits when they heard of them.
        announce(free)
    end
    return wanted
end
local left = ask_again == 0 and math.max(free or 0, 0) or 0
if free and caller ~= '' then
    local claims_for, claimed = make_claim(wanted)
    ask_again, left = claims_for, claimed and 0 or left
end
local place = enter(ARGV[5], ARGV[6], ARGV[8], math.max(free or 0, 0))
if not free then
    return -2 ^ 52
end
return -(math.min(left, 2 ^ 32 - 1) + ask_again * 2 ^ 32 + place * 2 ^ 46)
