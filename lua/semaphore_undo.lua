#!lua flags=allow-oom
-- Undoes an acquire that is in doubt: releases what it acquired, and keeps late copies of it from running.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]  the clients that were woken: a sorted set
-- KEYS[4]  the claim of a waiter that wants several permits: others leave it that many
-- KEYS[5]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of that acquire on its session slot, plus one
-- ARGV[2]  the semaphore's channel
-- returns  how many permits were released
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_undo.lua stock pyredisson_waiting:{stock} pyredisson_woken:{stock} pyredisson_semaphore_claim:{stock} pyredisson_once:{stock}:me:1 , 3 redisson_sc:{stock}

-- include: publish
local waiting, woken, claim, channel = KEYS[2], KEYS[3], KEYS[4], ARGV[2]
-- include: permit_waiters
-- include: exactly_once
-- include: number_of
local free = number_of(KEYS[1])
if free == false then
    return NO_NUMBER
end
record(0)
-- A semaphore that was deleted meanwhile must not be created again.
if last_number ~= tonumber(ARGV[1]) - 1 or last_result < 0 or not free then
    return 0
end
free = redis.call('INCRBY', KEYS[1], last_result)
announce(free)
return last_result
