#!lua flags=allow-oom
-- Moves a hold to another owner, who may be in another client.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold; of a read-write lock also `mode` -> read or write
-- ARGV[1]  the owner, whose hold has one level
-- ARGV[2]  the next owner, under a name that is used once
-- ARGV[3]  the lease of the next owner, ms; 0: what is left of the present one
-- returns  {lease, ms}: the next owner holds the lock for so long (-1: endless); nil: neither of them holds it;
--          -1: the owner writes and reads, and nothing was changed
--
-- Nobody is woken, as the lock stays held. Its lease is never shortened.
--
-- Idempotent: a second run finds the next owner, and only extends its lease.
--
-- redis-cli --eval lock_move.lua orders , me:1 you:1 30000
local lasts, asked = redis.call('PTTL', KEYS[1]), tonumber(ARGV[3])
local moved = redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
if not moved then
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
        return false
    end
    -- The owner would go on reading beside another writer. The fields are the mode and the writer, if nobody reads.
    if redis.call('HGET', KEYS[1], 'mode') == 'write' and #redis.call('HKEYS', KEYS[1]) > 2 then
        return -1
    end
end
if asked > 0 and lasts < asked then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    lasts = asked
elseif not moved and lasts ~= -1 then
    -- The same lease once more: a server of 6.2 that is out of memory refuses HSET as the first write.
    lasts = math.max(math.min(lasts, 2 ^ 52), 1)
    redis.call('PEXPIRE', KEYS[1], lasts)
end
-- Also by a second run: a WAIT behind it counts only writes. In this order the key is never removed: a slot may be being
-- moved.
redis.call('HSET', KEYS[1], ARGV[2], '1')
if not moved then
    redis.call('HDEL', KEYS[1], ARGV[1])
end
return {math.min(lasts, 2 ^ 52)}
