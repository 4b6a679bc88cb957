#!lua flags=allow-oom
-- Releases permits, and acquires permits for the next caller in the same step, exactly once.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]  the clients that were woken: a sorted set
-- KEYS[4]  the claim of a waiter that wants several permits: others leave it that many
-- KEYS[5]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits to release
-- ARGV[3]  how many permits to acquire, not more than that
-- ARGV[4]  the semaphore's channel
-- ARGV[5]  1: only if the semaphore exists; 0: create it if it doesn't
-- ARGV[6]  the names as which the client may be in the list, if no other caller waits there, with spaces between them
-- returns  above zero: so many were acquired after the release; -1: the permits were released, and none acquired;
--          0: there is no semaphore, and nothing was done
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_hand_over.lua stock pyredisson_waiting:{stock} pyredisson_woken:{stock} pyredisson_semaphore_claim:{stock} pyredisson_once:{stock}:me:1 , 2 1 1 redisson_sc:{stock} 0 ''

-- include: exactly_once
-- include: number_of
local before = number_of(KEYS[1])
if before == false then
    return NO_NUMBER
end
if ARGV[5] == '1' and not before then
    return record(0)
end
local released, wanted, names = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[6]
local free = (before or 0) + released
if released == wanted and wanted <= free and names == '' and redis.call('EXISTS', KEYS[4]) == 0 then
    -- The usual case, without all that a list needs.
    record(wanted)
    redis.call('INCRBY', KEYS[1], 0)
    return wanted
end
-- include: publish
local waiting, woken, claim, channel, caller = KEYS[2], KEYS[3], KEYS[4], ARGV[4], ''
-- include: permit_wait_in_list
local acquires = wanted <= free and held_back(free, wanted) == 0
record(acquires and wanted or -1)
free = redis.call('INCRBY', KEYS[1], string.format('%.0f', acquires and released - wanted or released))
if not (acquires and released == wanted) then
    announce(free)
end
if acquires then
    -- pcall: the permits are acquired, whatever the types of the other keys are.
    local _, _, was_woken = pcall(unlist, names)
    if was_woken then
        -- Others get the permits for which it was woken.
        wake(free)
    end
end
return acquires and wanted or -1
