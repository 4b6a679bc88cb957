#!lua flags=allow-oom
-- Takes back the claim of a writer that waits no longer, so that readers needn't.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> holds, writer:write -> holds
-- KEYS[2]  the claim of a writer that waits for the readers to leave
-- ARGV[1]  the lock's channel
-- ARGV[2]  what all names of that writer begin with
-- returns  1: taken back; 0: it had none. A second run changes nothing.
--
-- redis-cli --eval write_give_up.lua orders pyredisson_rwlock_writer:{orders} , redisson_rwlock:{orders} me:1:
local claim = redis.call('GET', KEYS[2])
if not claim or string.sub(claim, 1, #ARGV[2]) ~= ARGV[2] then
    return 0
end
redis.call('DEL', KEYS[2])
-- Under a writer, its release is what the readers wait for. pcall: whatever is at that name, the claim is gone.
if redis.pcall('HGET', KEYS[1], 'mode') ~= 'write' then
    redis.pcall('PUBLISH', ARGV[1], '1')
end
return 1
