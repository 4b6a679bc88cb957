#!lua flags=allow-oom
-- Releases levels of a hold, down to a stated number. Also undoes an acquire that is in doubt.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  the clients that wait for it: a sorted set, see waiting_list.lua
-- KEYS[3]  the client that was woken: a hash
-- ARGV[1]  the lock's channel (not a key: a user may publish there without a right to keys of that name); empty: none
-- ARGV[2]  the owner
-- ARGV[3]  how many levels remain (0: the lock becomes free)
-- ARGV[4]  the beginning of the names of the clients' channels
-- ARGV[5]  for how long others may come before the woken client, us
-- ARGV[6]  1: the owner's client is woken, too, as it sends this in the background
-- returns  1: the lock is free now; 3: the same, and clients of Redisson may have heard of it;
--          0: still held; nil: the owner doesn't hold the lock
--
-- Idempotent: the number of levels is absolute, and an owner that doesn't hold the lock changes nothing.
--
-- redis-cli --eval lock_release.lua orders pyredisson_waiting:{orders} pyredisson_woken:{orders} , redisson_lock__channel:{orders} me:1 0 pyredisson_wake:{orders}: 5000 0

-- include: publish
local held, late, heard = redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1, ARGV[6] == '1', 0
if held and ARGV[3] ~= '0' then
    redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
    return 0
end
local wakes = held and (not KEYS[2] or redis.call('EXISTS', KEYS[2], KEYS[3]) > 0)
if held then
    redis.call('DEL', KEYS[1])
    heard = ARGV[1] == '' and 0 or publish(ARGV[1], '0')
end
if wakes or late then
    -- include: wake_in_list
    if wakes then
        wake(KEYS[2], KEYS[3], ARGV[4], ARGV[5])
    end
    if late then
        -- Also if it isn't held: an earlier copy of this may have released the lock, without a word to the callers there.
        wake_client_of(ARGV[2], ARGV[4])
    end
end
return held and ((type(heard) ~= 'number' or heard > 0) and 3 or 1)
