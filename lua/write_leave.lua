#!lua flags=allow-oom
-- A client leaves the list of a read-write lock: no writer of it waits any more. Its claim is withdrawn.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the claim of a member of the list that waits for the readers to release the lock
-- KEYS[3]  the clients that wait to write: a sorted set, see waiting_list.lua
-- KEYS[4]  the clients that wait to read
-- KEYS[5]  the client that was woken: a hash
-- ARGV[1]  the client, as a member of the list
-- ARGV[2]  the beginning of the names of the clients' channels
-- ARGV[3]  for how long others may come before the woken client, us
-- returns  1: it was in the list, was woken, or had the claim; 0: none of that
--
-- If the lock is free, the next client is woken. If readers hold it, the next writer claims it at once, or readers are let in. If
-- a writer holds it, see lock_leave.lua.
--
-- Idempotent: a second run finds nothing, as the client comes back under another name. At most it repeats a message.
--
-- redis-cli --eval write_leave.lua orders pyredisson_rwlock_writer:{orders} pyredisson_waiting:{orders} pyredisson_waiting_readers:{orders} pyredisson_woken:{orders} , me:1 pyredisson_wake:{orders}: 5000

-- include: publish
-- include: wake_in_lists
local lock, claim, writers, readers, woken = unpack(KEYS)
local member, channels, patience = unpack(ARGV)
local place = redis.call('ZRANK', writers, member)
local was_woken = redis.call('HGET', woken, 'member') == member
local others = redis.call('ZCARD', writers) - (place and 1 or 0)
-- pcall, also below: this is sent until it has run, whatever the types of the other keys are.
local had_claim = redis.pcall('GET', claim) == member
local mode = redis.pcall('HGET', lock, 'mode')
if place then
    redis.call('ZREM', writers, member)
end
if had_claim then
    redis.call('DEL', claim)
end
if redis.call('EXISTS', lock) == 0 then
    pcall(wake_next, writers, readers, woken, channels, patience, false, member)
elseif mode == 'read' and (had_claim or ((was_woken or place == 0) and redis.call('EXISTS', claim) == 0)) then
    -- If it was woken, a reader has passed it over, and it would have claimed the lock.
    pcall(replace_claim, writers, readers, woken, channels, patience, member)
elseif mode ~= 'read' and others > 1 and place and place < 2 then
    tell(channels, redis.call('ZRANGE', writers, 1, 1)[1], 0)
end
if was_woken and redis.call('HGET', woken, 'member') == member then
    redis.call('DEL', woken)
end
return (place or was_woken or had_claim) and 1 or 0
