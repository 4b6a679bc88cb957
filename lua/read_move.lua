#!lua flags=allow-oom
-- Moves the hold of a reader to another one, who may be in another client.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the prefix of the names of the readers' lease keys
-- ARGV[1]  the reader, whose hold has one level
-- ARGV[2]  the next reader, under a name that is used once
-- ARGV[3]  the lease of the next reader, ms; 0: what is left of the present one
-- returns  {lease, ms}: the next reader has a hold for so long; nil: neither of them has one;
--          -1: the reader also writes, and nothing was changed
--
-- Nobody is woken, as the lock stays held. Its lease is never shortened.
--
-- Idempotent: a second run finds the next reader, and only extends its lease.
--
-- redis-cli --eval read_move.lua orders {orders}: , me:1 you:1 30000
local lock, leases = KEYS[1], KEYS[2]
-- include: read_leases
local reader, following, asked = ARGV[1], ARGV[2], tonumber(ARGV[3])
local moved = redis.call('HEXISTS', lock, following) == 1
local levels = levels_of(redis.call('HGET', lock, reader))
if not moved then
    if levels == 0 then
        return false
    end
    -- The next reader would read beside a writer.
    if redis.call('HGET', lock, 'mode') ~= 'read' then
        return -1
    end
end
local holder = moved and following or reader
local lasts = remaining_lease(holder, 1)
if lasts < 0 then
    -- The lease has ended: the field is what remains of the hold.
    redis.call('HDEL', lock, holder)
    return false
end
local lease = math.max(math.min(lasts, 2 ^ 52), asked)
if not moved or lasts < asked then
    redis.call('SET', lease_key(following, 1), '1', 'PX', lease)
end
-- After the lease key, so that the lock outlives it.
if redis.call('PTTL', lock) < lease then
    redis.call('PEXPIRE', lock, lease)
end
-- Also by a second run: a WAIT behind it counts only writes.
redis.call('HSET', lock, following, '1')
if not moved then
    redis.call('HDEL', lock, reader)
    -- An acquire of another level may be in doubt, and its undo on the way.
    for level = 1, levels do
        redis.call('DEL', lease_key(reader, level))
    end
end
return {lease}
