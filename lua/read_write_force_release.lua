#!lua flags=allow-oom
-- Removes a read-write lock if the given side of it is held, by any owner.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the clients that wait to write: a sorted set, see waiting_list.lua; neither this nor the further keys while the
--          slot is being moved
-- KEYS[3]  the clients that wait to read
-- KEYS[4]  the client that was woken: a hash
-- ARGV[1]  the lock's channel
-- ARGV[2]  the side: read or write
-- ARGV[3]  the beginning of the names of the clients' channels
-- ARGV[4]  for how long others may come before the woken client, us
-- returns  1: this side was held; 0: it wasn't
--
-- Not idempotent: a second run could remove the lock of the next holder. It is never sent again.
--
-- redis-cli --eval read_write_force_release.lua orders pyredisson_waiting:{orders} pyredisson_waiting_readers:{orders} pyredisson_woken:{orders} , redisson_rwlock:{orders} write pyredisson_wake:{orders}: 5000

-- include: publish
-- include: wake_in_lists
if redis.call('HGET', KEYS[1], 'mode') ~= ARGV[2] then
    return 0
end
local holders = redis.call('HKEYS', KEYS[1])
redis.call('DEL', KEYS[1])
publish(ARGV[1], ARGV[2] == 'write' and '1' or '0')
for _, holder in ipairs(holders) do
    if string.sub(holder, -6) == ':write' then
        wake_client_of(holder, ARGV[3])
    end
end
-- pcall: keys of a wrong type must not fail a release that was done.
if KEYS[2] then
    pcall(wake_next, KEYS[2], KEYS[3], KEYS[4], ARGV[3], ARGV[4], ARGV[2] == 'write')
else
    pcall(wake_all, ARGV[3])
end
return 1
