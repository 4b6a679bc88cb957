#!lua flags=allow-oom
-- Deletes the keys of a semaphore or a latch, exactly once.
--
-- KEYS[1]       the object itself; further keys of it may follow
-- KEYS[#KEYS]   the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]       the number of this call on its session slot
-- ARGV[2]       the object's channel
-- ARGV[3]       the message if there was something to delete; empty: none
-- returns       1: deleted; 0: there was nothing
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval exactly_once_delete.lua stock pyredisson_once:{stock}:me:1 , 2 redisson_sc:{stock} 1

-- include: publish
-- include: exactly_once
local found = record(redis.call('EXISTS', KEYS[1]))
for i = 1, #KEYS - 1 do
    redis.call('DEL', KEYS[i])
end
if found == 1 and ARGV[3] ~= '' then
    publish(ARGV[2], ARGV[3])
end
return found
