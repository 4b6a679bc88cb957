#!lua
-- Sets the number of free permits, exactly once, if it is still the one that a user was shown.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]  the clients that were woken: a sorted set
-- KEYS[4]  the claim of a waiter that wants several permits: others leave it that many
-- KEYS[5]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits were free when the user looked
-- ARGV[3]  how many are free from now on
-- ARGV[4]  the semaphore's channel
-- returns  1: done; 0: another number is free by now, or there is no semaphore
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_correct.lua stock pyredisson_waiting:{stock} pyredisson_woken:{stock} pyredisson_semaphore_claim:{stock} pyredisson_once:{stock}:me:1 , 2 17 20 redisson_sc:{stock}

-- include: publish
local waiting, woken, claim, channel = KEYS[2], KEYS[3], KEYS[4], ARGV[4]
-- include: permit_waiters
-- include: exactly_once
if redis.call('GET', KEYS[1]) ~= ARGV[2] then
    return record(0)
end
record(1)
redis.call('SET', KEYS[1], ARGV[3], 'KEEPTTL')
if tonumber(ARGV[3]) > math.max(0, tonumber(ARGV[2])) then
    announce(tonumber(ARGV[3]))
end
return 1
