#!lua flags=allow-oom
-- Removes what makes up a semaphore or a latch, once.
--
-- KEYS[1]        the object itself, and further keys of it
-- KEYS[2]        the last key: the lane's latest call
-- ARGV[1]        number of this call on its lane
-- ARGV[2]        the object's channel
-- ARGV[3]        what to publish if there was something to remove; empty: nothing
-- returns        1: removed; 0: there was nothing
--
-- redis-cli --eval once_delete.lua stock pyredisson_once:{stock}:me:1 , 2 redisson_sc:{stock} 1

-- include: once
local found = once(redis.call('EXISTS', KEYS[1]))
for i = 1, #KEYS - 1 do
    redis.call('DEL', KEYS[i])
end
if found == 1 and ARGV[3] ~= '' then
    -- pcall: a user without permission on the channel must still be able to delete.
    redis.pcall('PUBLISH', ARGV[2], ARGV[3])
end
return found
