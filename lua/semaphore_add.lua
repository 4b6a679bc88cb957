#!lua flags=allow-oom
-- Changes the number of free permits by so many, once: a release, or a larger or smaller semaphore.
--
-- KEYS[1]  the semaphore: a string, the free permits
-- KEYS[2]  the lane's latest call
-- ARGV[1]  number of this call on its lane
-- ARGV[2]  how many more; may be negative
-- ARGV[3]  the semaphore's channel
-- ARGV[4]  1: only if there is a semaphore; 0: else make one
-- returns  1: done; 0: there is no semaphore
--
-- redis-cli --eval semaphore_add.lua stock pyredisson_once:{stock}:me:1 , 2 1 redisson_sc:{stock} 0

-- include: once
if ARGV[4] == '1' and redis.call('EXISTS', KEYS[1]) == 0 then
    return once(0)
end
once(1)
local free = redis.call('INCRBY', KEYS[1], ARGV[2])
if free > 0 and tonumber(ARGV[2]) > 0 then
    -- pcall: a user without permission on the channel must still be able to release.
    redis.pcall('PUBLISH', ARGV[3], string.format('%.0f', free))
end
return 1
