#!lua
-- Creates a semaphore if there is none, exactly once.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits
-- ARGV[3]  after how many ms the semaphore ends; 0: never
-- ARGV[4]  the semaphore's channel
-- returns  1: created; 0: it exists already
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_set.lua stock pyredisson_once:{stock}:me:1 , 2 5 0 redisson_sc:{stock}

-- include: publish
-- include: exactly_once
if redis.call('EXISTS', KEYS[1]) == 1 then
    return record(0)
end
record(1)
if ARGV[3] == '0' then
    redis.call('SET', KEYS[1], ARGV[2])
else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
if ARGV[2] ~= '0' then
    publish(ARGV[4], ARGV[2])
end
return 1
