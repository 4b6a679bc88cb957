#!lua flags=allow-oom
-- Ends a hold, but keeps its lock for a stated time, in which nobody acquires it.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  the clients that wait for it: a sorted set, see waiting_list.lua
-- KEYS[3]  the client that was woken: a hash
-- ARGV[1]  the lock's channel; empty: none
-- ARGV[2]  the owner that releases its last level
-- ARGV[3]  for how long the lock is kept, ms
-- ARGV[4]  the beginning of the names of the clients' channels
-- ARGV[5]  for how long others may come before the woken client, us
-- ARGV[6]  1: the owner's client is woken, too, as it sends this in the background
-- returns  1: the lock is kept; nil: the owner doesn't hold the lock
--
-- The hold goes on under the name OWNER:kept. So a renewal that is on its way doesn't find its owner, and can't lengthen the
-- lease again. The lease may become shorter, so waiters are notified: they read the new one, and wait for that long.
--
-- Idempotent: a second run finds the name OWNER:kept and changes nothing.
--
-- redis-cli --eval lock_keep.lua orders pyredisson_waiting:{orders} pyredisson_woken:{orders} , redisson_lock__channel:{orders} me:1 5000 pyredisson_wake:{orders}: 5000 0

-- include: publish
-- include: wake_in_list
local kept = ARGV[2] .. ':kept'
if ARGV[6] == '1' then
    -- Here, as an earlier copy of this may have ended the hold without a word to the callers there.
    wake_client_of(ARGV[2], ARGV[4])
end
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
    if redis.call('HEXISTS', KEYS[1], kept) == 1 then
        return 1
    end
    return false
end
-- First, as a server of 6.2 that is out of memory refuses HSET as the first write.
redis.call('PEXPIRE', KEYS[1], ARGV[3])
-- In this order the key is never removed: a slot may be being moved.
redis.call('HSET', KEYS[1], kept, '1')
redis.call('HDEL', KEYS[1], ARGV[2])
if ARGV[1] ~= '' then
    publish(ARGV[1], '0')
    wake(KEYS[2], KEYS[3], ARGV[4], ARGV[5])
end
return 1
