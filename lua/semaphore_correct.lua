#!lua
-- Sets the number of free permits, exactly once, if it is still the one that a user was shown.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits were free when the user looked
-- ARGV[3]  how many are free from now on
-- ARGV[4]  the semaphore's channel
-- returns  1: done; 0: another number is free by now, or there is no semaphore
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_correct.lua stock pyredisson_once:{stock}:me:1 , 2 17 20 redisson_sc:{stock}

-- include: publish
-- include: exactly_once
if redis.call('GET', KEYS[1]) ~= ARGV[2] then
    return record(0)
end
record(1)
redis.call('SET', KEYS[1], ARGV[3], 'KEEPTTL')
if tonumber(ARGV[3]) > math.max(0, tonumber(ARGV[2])) then
    publish(ARGV[4], ARGV[3])
end
return 1
