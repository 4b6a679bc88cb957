#!lua flags=allow-oom
-- Finishes a hand-over that is in doubt, or whose next caller has left, such that its permits are released, once.
-- Also undoes an acquire that is in doubt: it is like a hand-over that had nothing to release.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]  the clients that were woken: a sorted set
-- KEYS[4]  the claim of a waiter that wants several permits: others leave it that many
-- KEYS[5]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of the hand-over, or of the acquire, on its session slot, plus one
-- ARGV[2]  how many permits the hand-over had to release; 0: an acquire
-- ARGV[3]  the semaphore's channel
-- ARGV[4]  1: only if the semaphore exists; 0: create it if it doesn't
-- returns  how many permits were released: what was acquired or, if the hand-over has not run, what it had to release
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once). A late copy of the hand-over
-- or the acquire doesn't run after it.
--
-- redis-cli --eval semaphore_finish.lua stock pyredisson_waiting:{stock} pyredisson_woken:{stock} pyredisson_semaphore_claim:{stock} pyredisson_once:{stock}:me:1 , 3 1 redisson_sc:{stock} 0

-- include: publish
local waiting, woken, claim, channel = KEYS[2], KEYS[3], KEYS[4], ARGV[3]
-- include: permit_waiters
-- include: exactly_once
-- include: free_permits
local has_run = last_number == tonumber(ARGV[1]) - 1
local permits = has_run and math.max(last_result, 0) or tonumber(ARGV[2])
-- After a call that has run, a semaphore that was deleted meanwhile must not be created again.
if permits == 0 or ((has_run or ARGV[4] == '1') and not free) then
    return record(0)
end
record(permits)
free = redis.call('INCRBY', KEYS[1], string.format('%.0f', permits))
announce(free)
return permits
