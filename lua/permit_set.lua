#!lua
-- Sets how many permits a semaphore has, free or in use, once; free ones may become fewer than none.
--
-- KEYS[1]  the semaphore: its free permits
-- KEYS[2]  its permits in use: a sorted set, id -> when it ends, ms
-- KEYS[3]  the lane's latest call
-- ARGV[1]  number of this call on its lane
-- ARGV[2]  how many permits
-- ARGV[3]  the semaphore's channel
-- returns  by how many permits it is larger now
--
-- redis-cli --eval permit_set.lua p {p}:timeout pyredisson_once:{p}:me:1 , 2 5 redisson_sc:{p}

-- include: once
local larger = ARGV[2] - (redis.call('GET', KEYS[1]) or 0) - redis.call('ZCOUNT', KEYS[2], 0, '+inf')
once(larger)
local free = redis.call('INCRBY', KEYS[1], string.format('%.0f', larger))
if larger > 0 and free > 0 then
    -- pcall: see permit_release.
    redis.pcall('PUBLISH', ARGV[3], string.format('%.0f', free))
end
return larger
