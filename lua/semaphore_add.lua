#!lua flags=allow-oom
-- Changes the number of free permits, exactly once: a release, or a larger or smaller semaphore.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits more; may be negative
-- ARGV[3]  the semaphore's channel
-- ARGV[4]  1: only if the semaphore exists; 0: create it if it doesn't
-- returns  1: done; 3: the same, and several clients have heard of free permits, or it isn't known how many;
--          0: there is no semaphore
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_add.lua stock pyredisson_once:{stock}:me:1 , 2 1 redisson_sc:{stock} 0

-- include: publish
-- include: exactly_once
-- include: number_of
local free = number_of(KEYS[1])
if free == false then
    return NO_NUMBER
end
if ARGV[4] == '1' and not free then
    return record(0)
end
record(1)
free = redis.call('INCRBY', KEYS[1], ARGV[2])
if free > 0 and tonumber(ARGV[2]) > 0 then
    local receivers = publish(ARGV[3], string.format('%.0f', free))
    if type(receivers) ~= 'number' or receivers > 1 then
        return 3
    end
end
return 1
