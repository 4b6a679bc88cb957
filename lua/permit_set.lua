#!lua
-- Sets the number of permits of a semaphore, free or in use, exactly once.
-- The number of free permits may become negative.
--
-- KEYS[1]  the semaphore: the number of its free permits
-- KEYS[2]  its permits in use: a sorted set, id -> when it ends, ms
-- KEYS[3]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  the number of permits
-- ARGV[3]  the semaphore's channel
-- returns  by how many permits the semaphore has become larger
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval permit_set.lua p {p}:timeout pyredisson_once:{p}:me:1 , 2 5 redisson_sc:{p}

-- include: publish
-- include: exactly_once
-- include: number_of
local free = number_of(KEYS[1])
if free == false then
    return NO_NUMBER
end
local larger = ARGV[2] - (free or 0) - redis.call('ZCOUNT', KEYS[2], '-inf', '+inf')
record(larger)
free = redis.call('INCRBY', KEYS[1], string.format('%.0f', larger))
if larger > 0 and free > 0 then
    publish(ARGV[3], string.format('%.0f', free))
end
return larger
