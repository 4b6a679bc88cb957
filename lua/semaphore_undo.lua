#!lua flags=allow-oom
-- Undoes an acquire that is in doubt: releases what it acquired, and keeps late copies of it from running.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of that acquire on its session slot, plus one
-- ARGV[2]  the semaphore's channel
-- returns  how many permits were released
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_undo.lua stock pyredisson_once:{stock}:me:1 , 3 redisson_sc:{stock}

-- include: publish
-- include: exactly_once
-- include: number_of
local free = number_of(KEYS[1])
if free == false then
    return NO_NUMBER
end
record(0)
-- A semaphore that was deleted meanwhile must not be created again.
if last_number ~= tonumber(ARGV[1]) - 1 or last_result < 0 or not free then
    return 0
end
free = redis.call('INCRBY', KEYS[1], last_result)
if free > 0 then
    publish(ARGV[2], string.format('%.0f', free))
end
return last_result
