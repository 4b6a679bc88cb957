#!lua flags=allow-oom
-- A client's sign of life while it has waiters for a fair lock; also sees to it that the next one in line is told.
--
-- KEYS[1]    the lock
-- KEYS[2]    its queue
-- KEYS[3]    the scores of the queue
-- KEYS[4]    our own waiters
-- KEYS[5]    our own clients
-- ARGV[1]    its channel; the next one listens to this one, a colon, and its own name
-- ARGV[2]    client: what stands before the first colon in its owners' names; empty: one that has no waiters
-- ARGV[3]    how long a place in the queue lasts by Redisson's rules, ms
-- ARGV[i+3]  a waiter of that client, those first who came first; as many as are to be looked for
-- returns    the lock's PTTL; 1: the client was known to be alive, 0: it wasn't, so its waiters may have lost their
--            places, -1: its waiters were unknown, and all of them have to look again; who was told that the lock is free (empty: nobody); 1: there are dead waiters left to drop,
--            so this is to be sent again at once, 0: there aren't; and a list of the given waiters that have no place
--
-- redis-cli --eval fair_heartbeat.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} , redisson_lock__channel:{orders} me 300000 me:1
local client, wait = ARGV[2], tonumber(ARGV[3])
-- include: fair_queue
-- include: fair_sweep
in_grace()
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', '(' .. text(now))
local known = redis.call('ZSCORE', KEYS[5], client) and 1 or 0
local left = redis.call('PTTL', KEYS[1])
local waits = redis.call('EXISTS', KEYS[2]) == 1
if waits and client ~= '' then
    redis.call('ZADD', KEYS[5], text(now + ALIVE), client)
end
local without = {}
for i = 4, #ARGV do
    local owner = ARGV[i]
    if not redis.call('ZSCORE', KEYS[3], owner) then
        without[#without + 1] = owner
    elseif redis.call('HSETNX', KEYS[4], owner, text(now)) == 1 then
        -- Our own keys were lost: it keeps its place all the same, and so must those who aren't named here.
        known = -1
    end
end
sweep()
if waits then
    redis.call('PEXPIRE', KEYS[4], text(KEEP + math.max(left, 0)))
    redis.call('PEXPIRE', KEYS[5], text(KEEP))
end
local told, more
if left == -2 then
    told, more = hand_off(wait, false)
else
    redis.call('HDEL', KEYS[4], OFFERED)
    more = select(4, living_head(false))
end
keep_front(wait, left)
return {left, known, told or '', more and 1 or 0, without}
