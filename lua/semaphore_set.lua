#!lua
-- Makes a semaphore, once, if there is none.
--
-- KEYS[1]  the semaphore: a string, the free permits
-- KEYS[2]  the lane's latest call
-- ARGV[1]  number of this call on its lane
-- ARGV[2]  how many permits
-- ARGV[3]  after how many ms the semaphore ends; 0: never
-- ARGV[4]  the semaphore's channel
-- returns  1: made; 0: there is one
--
-- redis-cli --eval semaphore_set.lua stock pyredisson_once:{stock}:me:1 , 2 5 0 redisson_sc:{stock}

-- include: once
if redis.call('EXISTS', KEYS[1]) == 1 then
    return once(0)
end
once(1)
if ARGV[3] == '0' then
    redis.call('SET', KEYS[1], ARGV[2])
else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
if ARGV[2] ~= '0' then
    redis.pcall('PUBLISH', ARGV[4], ARGV[2])
end
return 1
