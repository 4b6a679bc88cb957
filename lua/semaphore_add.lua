#!lua flags=allow-oom
-- Changes the number of free permits, exactly once: a release, or a larger or smaller semaphore.
--
-- KEYS[1]  the semaphore: a string, the number of free permits
-- KEYS[2]  the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]  the clients that were woken: a sorted set
-- KEYS[4]  the claim of a waiter that wants several permits: others leave it that many
-- KEYS[5]  the reply cache of the client's session slot: the number and the result of the latest call
-- ARGV[1]  the number of this call on its session slot
-- ARGV[2]  how many permits more; may be negative
-- ARGV[3]  the semaphore's channel
-- ARGV[4]  1: only if the semaphore exists; 0: create it if it doesn't
-- ARGV[5]  the client
-- returns  0: there is no semaphore; otherwise done: 1; 2 more if clients of Redisson may have heard of free permits; 4 more if
--          other clients than this one stand in the list
--
-- Idempotent: a copy of the call is answered with the recorded result (see exactly_once).
--
-- redis-cli --eval semaphore_add.lua stock pyredisson_waiting:{stock} pyredisson_woken:{stock} pyredisson_semaphore_claim:{stock} pyredisson_once:{stock}:me:1 , 2 1 redisson_sc:{stock} 0 me

-- include: publish
-- include: exactly_once
-- include: free_permits
if ARGV[4] == '1' and not free then
    return record(0)
end
record(1)
local channel, more = ARGV[3], tonumber(ARGV[2]) > 0
free = redis.call('INCRBY', KEYS[1], ARGV[2])
if redis.call('EXISTS', KEYS[2]) == 0 then
    -- The usual case, without all that a list needs.
    local heard = more and free > 0 and publish(channel, string.format('%.0f', free)) or 0
    return (type(heard) ~= 'number' or heard > 0) and 3 or 1
end
local waiting, woken, claim = KEYS[2], KEYS[3], KEYS[4]
-- include: permit_waiters
local heard = more and announce(free, true)
-- pcall: what was done must not fail by a key of a wrong type.
local is_list, others = pcall(others_wait, ARGV[5])
return 1 + (heard and 2 or 0) + (is_list and others and 4 or 0)
