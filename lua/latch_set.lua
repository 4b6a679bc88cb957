#!lua
-- Sets the count of a latch that is open, once.
--
-- KEYS[1]  the latch: a string, the count; absent: zero
-- KEYS[2]  the lane's latest call
-- ARGV[1]  number of this call on its lane
-- ARGV[2]  count, above zero
-- ARGV[3]  the latch's channel
-- returns  1: set; 0: the latch is still counting
--
-- redis-cli --eval latch_set.lua done pyredisson_once:{done}:me:1 , 2 3 redisson_countdownlatch__channel__{done}

-- include: once
if tonumber(redis.call('GET', KEYS[1]) or 0) > 0 then
    return once(0)
end
once(1)
redis.call('SET', KEYS[1], ARGV[2])
redis.pcall('PUBLISH', ARGV[3], '1')
return 1
