#!lua flags=allow-oom
-- Changes the number of free permits, exactly once: a release, or a larger or smaller semaphore.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]  the clients that were woken: a sorted set
-- KEYS[4]  the claim of a waiter that wants several permits: others leave it that many
-- KEYS[5]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits more; may be negative
-- ARGV[3]  the semaphore's channel
-- ARGV[4]  1: only if the semaphore exists; 0: create it if it doesn't
-- returns  1: done; 3: the same, and clients of Redisson may have heard of free permits; 0: there is no semaphore
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_add.lua stock pyredisson_waiting:{stock} pyredisson_woken:{stock} pyredisson_semaphore_claim:{stock} pyredisson_once:{stock}:me:1 , 2 1 redisson_sc:{stock} 0

-- include: publish
local waiting, woken, claim, channel = KEYS[2], KEYS[3], KEYS[4], ARGV[3]
-- include: permit_waiters
-- include: exactly_once
-- include: number_of
local free = number_of(KEYS[1])
if free == false then
    return NO_NUMBER
end
if ARGV[4] == '1' and not free then
    return record(0)
end
record(1)
free = redis.call('INCRBY', KEYS[1], ARGV[2])
if tonumber(ARGV[2]) > 0 and announce(free) then
    return 3
end
return 1
