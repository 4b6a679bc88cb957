#!lua
-- Counts the permits of a semaphore, and frees permits whose leases have ended.
--
-- KEYS[1]  the semaphore: the number of its free permits
-- KEYS[2]  its permits in use: a sorted set, id -> when it ends, ms
-- KEYS[3]  the clients that wait: a sorted set, see permit_waiters.lua. This and the next two may be left out: then all clients
--          are woken
-- KEYS[4]  the clients that were woken: a sorted set
-- KEYS[5]  the claim of a waiter that wants several permits: others leave it that many
-- ARGV[1]  the semaphore's channel
-- returns  {number of free permits (nil: the semaphore has never had any), number of permits in use}
--
-- Idempotent: a permit that has ended is freed once, because it is removed from KEYS[2].
--
-- redis-cli --eval permit_count.lua p {p}:timeout pyredisson_waiting:{p} pyredisson_woken:{p} pyredisson_semaphore_claim:{p} , redisson_sc:{p}

-- include: publish
local waiting, woken, claim, channel = KEYS[3], KEYS[4], KEYS[5], ARGV[1]
-- include: permit_waiters
local MOST_FREED = 1000 -- by one call: a million at once would block the server. The others count as free, too
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- include: free_permits
local in_use, before = redis.call('ZCOUNT', KEYS[2], '-inf', '+inf'), string.format('(%.0f', now)
local ended = redis.call('ZCOUNT', KEYS[2], '-inf', before)
local freed = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', before, 'LIMIT', 0, MOST_FREED)
for _, id in ipairs(freed) do
    redis.call('ZREM', KEYS[2], id)
end
if freed[1] then
    free = redis.call('INCRBY', KEYS[1], #freed)
    announce(free)
end
return {free and free + ended - #freed or false, in_use - ended}
