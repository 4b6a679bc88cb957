#!lua flags=allow-oom
-- Releases a fenced lock, and enters its next owner in the same step, with a token above all earlier ones.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  the newest token: a number; it stays when the lock is free
-- KEYS[3]  the newest token of a counter that was deleted
-- KEYS[4]  the clients that wait for it: a sorted set, see waiting_list.lua
-- ARGV[1]  the owner that releases its last level
-- ARGV[2]  the next owner, under a name that no earlier command in doubt has
-- ARGV[3]  the lease of the next owner, ms
-- ARGV[4]  the client of both, as a member of the list: it waits there no longer; empty: it isn't there
-- returns  {token}: the next owner holds the lock; 0: neither of them holds it, and nothing was changed
--
-- Idempotent: a second run finds the next owner, and never shortens its lease. It only leaves a gap between tokens.
--
-- redis-cli --eval fenced_hand_over.lua orders redisson_lock_token:{orders} pyredisson_fenced_newest:{orders} pyredisson_waiting:{orders} , me:1 me:2 30000 me:1

-- include: fenced_token
-- The lease of the former owner may be longer than the lease of the next one: nothing of it remains.
local remaining = -1
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
        return 0
    end
    remaining = redis.call('PTTL', KEYS[1])
end
-- Before the lock is changed, as this may fail.
local token, problem = next_token(KEYS[2], KEYS[3])
if not token then
    return problem
end
-- Also by a second run: a WAIT behind it counts only writes. In this order the key is never removed: in a slot that is
-- being moved, the server ends a script that uses a removed key again. The lock would be free, and nobody notified.
redis.call('HSET', KEYS[1], ARGV[2], '1')
redis.call('HDEL', KEYS[1], ARGV[1])
-- pcall: a list of a wrong type must not fail a release that was done.
if ARGV[4] ~= '' then
    redis.pcall('ZREM', KEYS[4], ARGV[4])
end
if remaining < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {token}
