#!lua flags=allow-oom
-- Wakes the waiters of a lock whose holder has noticed that its hold is lost. Does nothing if the lock is held.
-- If the list is lost, too, all clients that listen are woken. One of them gets the lock, and the others enter the list.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold. No keys: the lock is on another node, to which its slot
--          is being moved, and the waiters are still subscribed on this one
-- KEYS[2]  the clients that wait for it: a sorted set, see waiting_list.lua
-- KEYS[3]  the client that was woken: a hash
-- KEYS[4]  optional: the clients that wait for the other side of a read-write lock
-- ARGV[1]  the lock's channel (not a key: a user may publish there without a right to keys of that name);
--          empty: none
-- ARGV[2]  the message of a release
-- ARGV[3]  the beginning of the names of the clients' channels
-- ARGV[4]  for how long others may come before the woken client, us
-- returns  1: the lock is free, and its waiters were notified; 0: the lock is held
--
-- Idempotent: a second run only repeats the message.
--
-- redis-cli --eval lock_wake_waiters.lua orders pyredisson_waiting:{orders} pyredisson_woken:{orders} , redisson_lock__channel:{orders} 0 pyredisson_wake:{orders}: 5000

-- include: publish
-- include: wake_in_list
if KEYS[1] and redis.call('EXISTS', KEYS[1]) == 1 then
    return 0
end
if ARGV[1] ~= '' then
    publish(ARGV[1], ARGV[2])
end
if KEYS[2] and redis.call('EXISTS', KEYS[2], KEYS[4] or KEYS[2]) == 0 then
    wake_all(ARGV[3])
else
    wake_either(KEYS[2], KEYS[4], KEYS[3], ARGV[3], ARGV[4])
end
return 1
