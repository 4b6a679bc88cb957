#!lua flags=allow-oom
-- Removes a lock, whoever holds it.
--
-- KEYS[1]  the lock
-- KEYS[2]  the clients that wait for it: a sorted set, see waiting_list.lua
-- KEYS[3]  the client that was woken: a hash
-- ARGV[1]  the lock's channel; empty: it has none
-- ARGV[2]  the beginning of the names of the clients' channels
-- ARGV[3]  for how long others may come before the woken client, us
-- returns  1: the lock was held; 0: it was free
--
-- Not idempotent: a second run could remove the lock of the next holder. It is never sent again.
--
-- redis-cli --eval lock_force_release.lua orders pyredisson_waiting:{orders} pyredisson_woken:{orders} , redisson_lock__channel:{orders} pyredisson_wake:{orders}: 5000

-- include: publish
-- include: wake_in_list
local holder = redis.pcall('HKEYS', KEYS[1])[1]
if redis.call('DEL', KEYS[1]) == 0 then
    return 0
end
if ARGV[1] ~= '' then
    publish(ARGV[1], '0')
    wake_client_of(holder, ARGV[2])
end
wake(KEYS[2], KEYS[3], ARGV[2], ARGV[3])
return 1
