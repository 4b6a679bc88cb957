#!lua flags=allow-oom
-- Releases a lock, and enters its next owner in the same step.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  the clients that wait for it: a sorted set, see waiting_list.lua
-- ARGV[1]  the owner that releases its last level
-- ARGV[2]  the next owner, under a name that no earlier command in doubt has
-- ARGV[3]  the lease of the next owner, ms
-- ARGV[4]  the client of both, as a member of the list: it waits there no longer; empty: it isn't there
-- returns  {0}: the next owner holds the lock; 0: neither of them holds it, and nothing was changed
--
-- Idempotent: a second run finds the next owner, and never shortens its lease.
--
-- redis-cli --eval lock_hand_over.lua orders pyredisson_waiting:{orders} , me:1 me:2 30000 me:1

-- The lease of the former owner may be longer than the lease of the next one: nothing of it remains.
local remaining = -1
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
        return 0
    end
    remaining = redis.call('PTTL', KEYS[1])
end
-- First, as a server of 6.2 that is out of memory refuses HSET as the first write.
if remaining < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
-- Also by a second run: a WAIT behind it counts only writes. In this order the key is never removed: in a slot that is
-- being moved, the server ends a script that uses a removed key again. The lock would be free, and nobody notified.
redis.call('HSET', KEYS[1], ARGV[2], '1')
redis.call('HDEL', KEYS[1], ARGV[1])
-- pcall: a list of a wrong type must not fail a release that was done.
if KEYS[2] and ARGV[4] ~= '' then
    redis.pcall('ZREM', KEYS[2], ARGV[4])
end
return {0}
