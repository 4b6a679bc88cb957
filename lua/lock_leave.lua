#!lua flags=allow-oom
-- A client that waits for a lock leaves its list: no caller of it waits any more.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  the clients that wait for it: a sorted set, see waiting_list.lua
-- KEYS[3]  the client that was woken: a hash
-- KEYS[4]  optional: the clients that wait for the other side of a read-write lock
-- ARGV[1]  the client, as a member of the list
-- ARGV[2]  the beginning of the names of the clients' channels
-- ARGV[3]  for how long others may come before the woken client, us
-- returns  1: it was in the list, or was woken; 0: neither
--
-- The next client is woken if this one was about to acquire the lock. If the lock is held, the client that is second now looks
-- at once: the first two listen to the messages of Redisson's clients.
--
-- Idempotent: a second run finds nothing, as the client comes back under another name. At most it repeats a message.
--
-- redis-cli --eval lock_leave.lua orders pyredisson_waiting:{orders} pyredisson_woken:{orders} , me:1 pyredisson_wake:{orders}: 5000

-- include: publish
-- include: wake_in_lists
local place = redis.call('ZRANK', KEYS[2], ARGV[1])
local was_woken = redis.call('HGET', KEYS[3], 'member') == ARGV[1]
local others = redis.call('ZCARD', KEYS[2]) - (place and 1 or 0)
if place then
    redis.call('ZREM', KEYS[2], ARGV[1])
end
if (others > 0 or KEYS[4]) and redis.call('EXISTS', KEYS[1]) == 0 then
    wake_either(KEYS[2], KEYS[4], KEYS[3], ARGV[2], ARGV[3], ARGV[1])
elseif KEYS[4] and was_woken and redis.pcall('HGET', KEYS[1], 'mode') == 'read' then
    -- Readers may read, and the one that was woken lets in nobody.
    admit_readers(KEYS[4], KEYS[2], KEYS[3], ARGV[2], ARGV[3], ARGV[1])
elseif others > 1 and place and place < 2 then
    tell(ARGV[2], redis.call('ZRANGE', KEYS[2], 1, 1)[1], 0)
end
if was_woken and redis.call('HGET', KEYS[3], 'member') == ARGV[1] then
    redis.call('DEL', KEYS[3])
end
return (place or was_woken) and 1 or 0
