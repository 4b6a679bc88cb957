#!lua flags=allow-oom
-- Counts a latch down by one, once.
--
-- KEYS[1]  the latch: a string, the count; absent: zero
-- KEYS[2]  the lane's latest call
-- ARGV[1]  number of this call on its lane
-- ARGV[2]  the latch's channel
-- returns  1: the latch opened; 0: it is still counting, or was open before
--
-- redis-cli --eval latch_count_down.lua done pyredisson_once:{done}:me:1 , 2 redisson_countdownlatch__channel__{done}

-- include: once
local count = tonumber(redis.call('GET', KEYS[1]) or 0)
if count > 1 then
    once(0)
    redis.call('DECR', KEYS[1])
    return 0
end
once(count == 1 and 1 or 0)
redis.call('DEL', KEYS[1])
if count == 1 then
    -- Never while the count is above zero: Redisson's waiters would ask for it without a pause.
    redis.pcall('PUBLISH', ARGV[2], '0')
    return 1
end
return 0
