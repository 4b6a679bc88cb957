#!lua flags=allow-oom
-- Releases the last level of a writer's hold, and enters the next writer in the same step.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the prefix of the names of the readers' lease keys
-- KEYS[3]  the clients that wait to write: a sorted set, see waiting_list.lua
-- KEYS[4]  the clients that wait to read
-- KEYS[5]  the client that was woken: a hash
-- ARGV[1]  the lock's channel
-- ARGV[2]  the writer, `:write` included
-- ARGV[3]  the next writer, `:write` included, under a name that no earlier command in doubt has
-- ARGV[4]  the lease of the next writer, ms
-- ARGV[5]  the writers of the client of both, as a member of the list: they wait there no longer; empty: they aren't there
-- ARGV[6]  the beginning of the names of the clients' channels
-- ARGV[7]  for how long others may come before the woken client, us
-- returns  {0}: the next writer has a hold; 0: neither of them has one, and nothing was changed; 1: the writer reads, too,
--          and keeps that hold: it has released the lock, and the next writer isn't entered
--
-- Idempotent: a second run finds the next writer, and never shortens its lease.
--
-- redis-cli --eval write_hand_over.lua orders {orders}: pyredisson_waiting:{orders} pyredisson_waiting_readers:{orders} pyredisson_woken:{orders} , redisson_rwlock:{orders} me:1:write me:2:write 30000 me:1 pyredisson_wake:{orders}: 5000

local lock, leases = KEYS[1], KEYS[2]
-- include: read_leases
-- The lease of the former writer may be longer than the lease of the next one: nothing of it remains.
local remaining = -1
if redis.call('HEXISTS', lock, ARGV[2]) == 1 then
    redis.call('HDEL', lock, ARGV[2])
    local longest = longest_lease()
    if longest > 0 then
        redis.call('HSET', lock, 'mode', 'read')
        redis.call('PEXPIRE', lock, longest)
        -- include: publish
        publish(ARGV[1], '1')
        -- include: wake_in_lists
        -- pcall: keys of a wrong type must not fail a release that was done.
        pcall(admit_readers, KEYS[3], KEYS[4], KEYS[5], ARGV[6], ARGV[7])
        return 1
    end
    -- Without removing the key: in a slot that is being moved, the server ends a script that uses a removed key again.
    remove_readers()
elseif redis.call('HEXISTS', lock, ARGV[3]) == 1 then
    remaining = redis.call('PTTL', lock)
else
    return 0
end
-- Also by a second run: a WAIT behind it counts only writes.
redis.call('HSET', lock, ARGV[3], '1')
if remaining < tonumber(ARGV[4]) then
    redis.call('PEXPIRE', lock, ARGV[4])
end
-- pcall: a list of a wrong type must not fail a release that was done.
if ARGV[5] ~= '' then
    redis.pcall('ZREM', KEYS[3], ARGV[5])
end
return {0}
