#!lua
-- Acquires a lock, or adds a level to its owner's hold.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  the clients that wait for it: a sorted set, see waiting_list.lua
-- KEYS[3]  the client that was woken: a hash
-- ARGV[1]  the owner
-- ARGV[2]  how many levels the owner's hold has after this call (1: a new hold)
-- ARGV[3]  the lease, ms
-- ARGV[4]  the client, as a member of the list
-- ARGV[5]  for how long the list lasts if the client waits in it, ms; 0: it doesn't wait
-- returns  nil: acquired; otherwise the remaining lease of the holder, ms (-1: endless), or for how long the free lock is
--          reserved for another client, and what wait_in_list.lua adds for a caller that waits;
--          -2: another level was asked for, but nobody holds the lock: the owner's hold is lost
--
-- Idempotent: the number of levels is absolute.
--
-- redis-cli --eval lock_acquire.lua orders pyredisson_waiting:{orders} pyredisson_woken:{orders} , me:1 1 30000 me:1 60000

if ARGV[2] == '1' and redis.call('EXISTS', unpack(KEYS)) == 0 then
    -- The usual case, without all that a list needs.
    redis.call('HSET', KEYS[1], ARGV[1], '1')
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    return false
end
local waiting, woken = KEYS[2], KEYS[3]
-- include: acquire_or_wait
arrive(waiting, woken, ARGV[4], listed, mine)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
-- Another level never shortens the lease of the hold.
if remaining < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return false
