#!lua flags=allow-oom
-- Counts a latch down by one, exactly once.
--
-- KEYS[1]  the latch: a string, the count; absent: zero
-- KEYS[2]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  the latch's channel
-- returns  1: the latch opened; 0: the count is still above zero, or was zero before
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval latch_count_down.lua done pyredisson_once:{done}:me:1 , 2 redisson_countdownlatch__channel__{done}

-- include: publish
-- include: exactly_once
-- include: number_of
local count = number_of(KEYS[1], 2 ^ 63)
if count == false then
    return NO_NUMBER
end
if count and count > 1 then
    record(0)
    redis.call('DECR', KEYS[1])
    return 0
end
record(count == 1 and 1 or 0)
redis.call('DEL', KEYS[1])
if count == 1 then
    -- Only now: with a count above zero, this message would make Redisson's waiters poll without a pause.
    publish(ARGV[2], '0')
    return 1
end
return 0
