#!lua
-- Sets the count of a latch that is open, exactly once.
--
-- KEYS[1]  the latch: a string, the count; absent: zero
-- KEYS[2]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  the count, above zero
-- ARGV[3]  the latch's channel
-- returns  1: set; 0: the count is still above zero
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval latch_set.lua done pyredisson_once:{done}:me:1 , 2 3 redisson_countdownlatch__channel__{done}

-- include: publish
-- include: exactly_once
-- include: number_of
local count = number_of(KEYS[1], 2 ^ 63)
if count == false then
    return NO_NUMBER
end
if count and count > 0 then
    return record(0)
end
record(1)
redis.call('SET', KEYS[1], ARGV[2])
publish(ARGV[3], '1')
return 1
