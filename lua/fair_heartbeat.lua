#!lua flags=allow-oom
-- A client's heartbeat while it has waiters for a fair lock.
-- It also drops dead waiters, and notifies the next waiter again if the lock is free: a message may have been lost.
--
-- KEYS[1]    the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]    its queue: a list of owners, the next one first
-- KEYS[3]    the scores of the queue: a sorted set, owner -> until when Redisson keeps its place, ms (server's time)
-- KEYS[4]    the waiters of pyredisson: a hash, owner -> when it last asked for the lock, ms (0 or less: it has left)
-- KEYS[5]    the clients of pyredisson: a sorted set, client -> until when it counts as alive, ms
-- ARGV[1]    the lock's channel; a waiter subscribes to this name followed by a colon and the waiter's own name
-- ARGV[2]    the client: the part before the first colon in the names of its owners; empty: a client without waiters
-- ARGV[3]    how long a place in the queue lasts by Redisson's rules, ms
-- ARGV[i+3]  a waiter of this client, in the order of the queue; as many as are to be checked
-- returns    five values:
--            the lock's PTTL;
--            1: the client was known to be alive; 0: it wasn't, so its waiters may have lost their places; -1: its
--            waiters were unknown, so all of its waiters have to ask for the lock again;
--            the waiter that was notified that the lock is free (empty: none);
--            1: there are more dead waiters to drop, so the command is to be sent again at once; 0: there are none;
--            a list of the given waiters that have no place in the queue
--
-- Idempotent: a second run repeats the sign of life and the message.
--
-- redis-cli --eval fair_heartbeat.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} me 300000 me:1
local client, place_lasts = ARGV[2], tonumber(ARGV[3])
-- include: fair_queue
-- include: fair_sweep
-- First, because this heartbeat would hide that all clients were silent.
begin_grace_if_all_silent()
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', '(' .. text(now))
local known = redis.call('ZSCORE', KEYS[5], client) and 1 or 0
local remaining = redis.call('PTTL', KEYS[1])
local has_queue = redis.call('EXISTS', KEYS[2]) == 1
if has_queue and client ~= '' then
    redis.call('ZADD', KEYS[5], text(now + ALIVE), client)
end
local without_place = {}
for i = 4, #ARGV do
    local owner = ARGV[i]
    if not has_queue or not redis.call('ZSCORE', KEYS[3], owner) then
        without_place[#without_place + 1] = owner
    elseif not when_asked(owner) then
        redis.call('HSET', KEYS[4], owner, text(now))
        -- The keys of pyredisson were lost. This waiter keeps its place all the same. The client's waiters that this
        -- command doesn't name must keep theirs, too: -1 makes them ask again.
        known = -1
    end
end
-- Of a hash of up to 512 fields HSCAN returns all: however many clients wait, about ten of their heartbeats in a second
-- do so.
if time[2] % math.max(1, redis.call('ZCARD', KEYS[5])) < 4 then
    sweep()
end
if has_queue then
    redis.call('PEXPIRE', KEYS[4], text(KEEP + math.max(remaining, 0)))
    redis.call('PEXPIRE', KEYS[5], text(KEEP))
end
local notified, more
if remaining == -2 then
    notified, more = notify_head(place_lasts, false)
else
    redis.call('HDEL', KEYS[4], OFFERED_FIELD)
    more = select(4, living_head(false))
end
keep_front(place_lasts, remaining)
return {remaining, known, notified or '', more and 1 or 0, without_place}
