#!lua flags=allow-oom
-- Returns whether anyone reads; a writer may be a reader, too.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- returns  1: there is a reader; 0: there is none
--
-- Idempotent: it only reads.
--
-- redis-cli --eval read_locked.lua orders ,
local mode = redis.call('HGET', KEYS[1], 'mode')
-- A third field, beside the mode and the writer's field, exists only if the writer reads, too.
if mode == 'read' or (mode == 'write' and redis.call('HLEN', KEYS[1]) > 2) then
    return 1
end
return 0
