#!lua
-- Creates a semaphore if there is none, exactly once.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]  the clients that were woken: a sorted set
-- KEYS[4]  the claim of a waiter that wants several permits: others leave it that many
-- KEYS[5]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits
-- ARGV[3]  after how many ms the semaphore ends; 0: never
-- ARGV[4]  the semaphore's channel
-- returns  1: created; 0: it exists already
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_set.lua stock pyredisson_waiting:{stock} pyredisson_woken:{stock} pyredisson_semaphore_claim:{stock} pyredisson_once:{stock}:me:1 , 2 5 0 redisson_sc:{stock}

-- include: publish
local waiting, woken, claim, channel = KEYS[2], KEYS[3], KEYS[4], ARGV[4]
-- include: permit_waiters
-- include: exactly_once
if redis.call('EXISTS', KEYS[1]) == 1 then
    return record(0)
end
record(1)
if ARGV[3] == '0' then
    redis.call('SET', KEYS[1], ARGV[2])
else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
announce(tonumber(ARGV[2]))
return 1
