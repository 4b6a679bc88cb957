#!lua flags=allow-oom
-- Releases a fair lock, and enters its next owner in the same step, if that is the head of the queue.
-- If another waiter is the head, it is notified as by fair_release.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  its queue: a list of owners, the next one first
-- KEYS[3]  the scores of the queue: a sorted set, owner -> until when Redisson keeps its place, ms (server's time)
-- KEYS[4]  the waiters of pyredisson: a hash, owner -> when it last asked for the lock, ms (0 or less: it has left)
-- KEYS[5]  the clients of pyredisson: a sorted set, client -> until when it counts as alive, ms
-- ARGV[1]  the lock's channel; a waiter subscribes to this name followed by a colon and the waiter's own name
-- ARGV[2]  the owner that releases its last level
-- ARGV[3]  how long a place in the queue lasts by Redisson's rules, ms
-- ARGV[4]  the next owner: a waiter of the same client
-- ARGV[5]  the lease of the next owner, ms
-- returns  {0}: the next owner holds the lock; 1: the lock is free now, and the head was notified; 2: the lock is free,
--          but dead waiters have to be dropped by fair_heartbeat before the next living waiter can be notified;
--          0: neither of both owners holds the lock, and nothing was changed
--
-- Idempotent: a second run finds the next owner, and never shortens its lease. A copy that arrives after the next owner
-- has left (see fair_leave) doesn't enter it.
--
-- redis-cli --eval fair_hand_over.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} me:1 300000 me:2 30000
local owner, next_owner, lease = ARGV[2], ARGV[4], ARGV[5]
if redis.call('HEXISTS', KEYS[1], owner) == 0 then
    local levels = redis.call('HGET', KEYS[1], next_owner)
    if not levels then
        return 0
    end
    -- Written again: a WAIT behind this command counts only writes.
    redis.call('HSET', KEYS[1], next_owner, levels)
    if redis.call('PTTL', KEYS[1]) < tonumber(lease) then
        redis.call('PEXPIRE', KEYS[1], lease)
    end
    return {0}
end
-- include: fair_enter
local function enter()
    -- PEXPIRE first, as it needs no memory: older servers refuse HSET in a script that has written nothing. The key is
    -- never removed: while its slot is being moved, a key that was removed can't be written again.
    redis.call('PEXPIRE', KEYS[1], lease)
    redis.call('HSET', KEYS[1], next_owner, '1')
    redis.call('HDEL', KEYS[1], owner)
    leave_as_head(next_owner)
    return {0}
end

if redis.call('LINDEX', KEYS[2], 0) == next_owner then
    local asked_at = when_asked(next_owner)
    -- A key of another type raises its error here, before anything is changed.
    redis.call('ZSCORE', KEYS[3], next_owner)
    if not (asked_at and has_left(asked_at)) then
        return enter()
    end
end
-- include: fair_queue
local head, _, _, more = living_head(false)
if head == next_owner then
    return enter()
end
redis.call('DEL', KEYS[1])
if not more then
    _, more = notify_head(tonumber(ARGV[3]), true)
end
return more and 2 or 1
