#!lua
-- Sets the number of permits of a semaphore, free or in use, exactly once.
-- The number of free permits may become negative.
--
-- KEYS[1]  the semaphore: the number of its free permits
-- KEYS[2]  the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]  the clients that were woken: a sorted set
-- KEYS[4]  the claim of a waiter that wants several permits: others leave it that many
-- KEYS[5]  its permits in use: a sorted set, id -> when it ends, ms
-- KEYS[6]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  the number of permits
-- ARGV[3]  the semaphore's channel
-- returns  by how many permits the semaphore has become larger
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval permit_set.lua p pyredisson_waiting:{p} pyredisson_woken:{p} pyredisson_semaphore_claim:{p} {p}:timeout pyredisson_once:{p}:me:1 , 2 5 redisson_sc:{p}

-- include: publish
local waiting, woken, claim, channel = KEYS[2], KEYS[3], KEYS[4], ARGV[3]
-- include: permit_waiters
-- include: exactly_once
-- include: free_permits
local larger = ARGV[2] - (free or 0) - redis.call('ZCOUNT', KEYS[5], '-inf', '+inf')
record(larger)
free = redis.call('INCRBY', KEYS[1], string.format('%.0f', larger))
if larger > 0 then
    announce(free)
end
return larger
