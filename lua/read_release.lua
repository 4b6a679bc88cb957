#!lua flags=allow-oom
-- Releases levels of a reader's hold, down to a stated number. Also undoes an acquire that is in doubt.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the prefix of the names of the readers' lease keys
-- KEYS[3]  the period of the writers' claims, which ends when the lock becomes free
-- KEYS[4]  the clients that wait to write: a sorted set, see waiting_list.lua
-- KEYS[5]  the clients that wait to read
-- KEYS[6]  the client that was woken: a hash
-- ARGV[1]  the lock's channel
-- ARGV[2]  the reader
-- ARGV[3]  how many levels remain
-- ARGV[4]  the beginning of the names of the clients' channels
-- ARGV[5]  for how long others may come before the woken client, us
-- returns  1: the lock is free now; 0: it is still held, by any owner; nil: the reader has no hold
--
-- Idempotent: the number of levels is absolute, and a reader without a hold changes nothing.
--
-- redis-cli --eval read_release.lua orders {orders}: pyredisson_rwlock_turn:{orders} pyredisson_waiting:{orders} pyredisson_waiting_readers:{orders} pyredisson_woken:{orders} , redisson_rwlock:{orders} me:1 0 pyredisson_wake:{orders}: 5000

-- include: publish
local lock, leases = KEYS[1], KEYS[2]
-- include: read_leases
local reader, remaining = ARGV[2], tonumber(ARGV[3])
local levels = levels_of(redis.call('HGET', lock, reader))
if levels == 0 then
    return false
end
local longest = 0
for released = remaining + 1, levels do
    longest = math.max(longest, remaining_lease(reader, released))
    redis.call('DEL', lease_key(reader, released))
end
if remaining > 0 then
    redis.call('HSET', lock, reader, ARGV[3])
    -- The longest lease of a hold's levels is valid for all of them, and the reader relies on it.
    if longest > 0 and redis.call('PTTL', lease_key(reader, remaining)) < longest then
        redis.call('SET', lease_key(reader, remaining), '1', 'PX', longest)
    end
    return 0
end
redis.call('HDEL', lock, reader)
if redis.call('HGET', lock, 'mode') == 'write' then
    -- The lock's expiry is the writer's lease, which is stored nowhere else.
    return 0
end
if redis.call('HLEN', lock) > 1 then
    -- If the lock lasts clearly longer than this reader's lease, it does so for another reader.
    local lasts = redis.call('PTTL', lock)
    if lasts > longest + 10 or any_lease_lasts(lasts) then
        return 0
    end
    longest = longest_lease()
    if longest > 0 then
        redis.call('PEXPIRE', lock, longest)
        return 0
    end
    -- The leases of the other readers have ended.
end
local wakes = redis.call('EXISTS', KEYS[4], KEYS[5], KEYS[6]) > 0
redis.call('DEL', lock, KEYS[3])
publish(ARGV[1], '0')
if wakes then
    -- include: wake_in_lists
    -- pcall: keys of a wrong type must not fail a release that was done.
    pcall(wake_next, KEYS[4], KEYS[5], KEYS[6], ARGV[4], ARGV[5])
end
return 1
