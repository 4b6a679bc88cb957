#!lua flags=allow-oom
-- Tells whether anyone reads, the writer included.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> holds, writer:write -> holds
-- returns  1: somebody does; 0: nobody
--
-- redis-cli --eval read_locked.lua orders ,
local mode = redis.call('HGET', KEYS[1], 'mode')
-- Besides the mode and the writer's field there is one only if the writer reads, too.
if mode == 'read' or (mode == 'write' and redis.call('HLEN', KEYS[1]) > 2) then
    return 1
end
return 0
