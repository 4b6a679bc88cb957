#!lua flags=allow-oom
-- Releases the last level of a writer's hold, and enters readers in the same step.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the prefix of the names of the readers' lease keys
-- KEYS[3]  the clients that wait to write: a sorted set, see waiting_list.lua
-- KEYS[4]  the clients that wait to read
-- KEYS[5]  the client that was woken: a hash
-- ARGV[1]  the lock's channel
-- ARGV[2]  the writer, `:write` included
-- ARGV[3]  the readers of the client, as a member of the list: they wait there no longer; empty: they aren't there
-- ARGV[4]  the beginning of the names of the clients' channels
-- ARGV[5]  for how long others may come before the woken client, us
-- ARGV[2i+4], ARGV[2i+5]  a reader, under a name that no earlier command in doubt has, and its lease, ms
-- returns  for each reader 1: it has a hold now; 0: it has none. 0 instead of a list: neither the writer nor any of the
--          readers has a hold, and nothing was changed
--
-- Idempotent: a second run finds the readers, and never shortens a lease.
--
-- redis-cli --eval write_let_readers_in.lua orders {orders}: pyredisson_waiting:{orders} pyredisson_waiting_readers:{orders} pyredisson_woken:{orders} , redisson_rwlock:{orders} me:1:write me:1:r pyredisson_wake:{orders}: 5000 me:2 30000 me:3 30000

local lock, leases = KEYS[1], KEYS[2]
-- include: read_leases
local writes = redis.call('HEXISTS', lock, ARGV[2]) == 1
local longest = 0
if writes then
    redis.call('HDEL', lock, ARGV[2])
    -- Of the writer, which may read, too.
    longest = longest_lease()
end
-- Usually only the mode is left, and no reader has a field.
local empty = writes and redis.call('HLEN', lock) == 1
local entered, levels, any = {}, {}, false
for i = 6, #ARGV, 2 do
    levels[i] = empty and 0 or levels_of(redis.call('HGET', lock, ARGV[i]))
    entered[#entered + 1] = (writes or levels[i] > 0) and 1 or 0
    any = any or levels[i] > 0
end
if not (writes or any) then
    return 0
end
if writes and longest == 0 and not empty then
    -- Without removing the key: in a slot that is being moved, the server ends a script that uses a removed key again.
    remove_readers()
end
local fields = { 'mode', 'read' }
for i = 6, #ARGV, 2 do
    local reader, lease = ARGV[i], tonumber(ARGV[i + 1])
    if writes then
        -- What remains of a lost hold of that name.
        for level = 2, levels[i] do
            redis.call('DEL', lease_key(reader, level))
        end
        redis.call('SET', lease_key(reader, 1), '1', 'PX', lease)
        fields[#fields + 1] = reader
        fields[#fields + 1] = '1'
    elseif levels[i] > 0 and remaining_lease(reader, 1) < lease then
        redis.call('SET', lease_key(reader, 1), '1', 'PX', lease)
    end
    if writes or levels[i] > 0 then
        longest = math.max(longest, lease)
    end
end
if writes then
    redis.call('HSET', lock, unpack(fields))
end
-- Also by a second run: a WAIT behind it counts only writes. If the writer has released the lock just now, its lease ends
-- with that. Else the lock may last for longer, for other readers.
redis.call('PEXPIRE', lock, writes and longest or math.max(longest, math.min(redis.call('PTTL', lock), ENDLESS)))
if writes then
    -- include: publish
    -- For readers of other clients, and for Redisson's writers.
    publish(ARGV[1], '1')
    if redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[5]) > 0 then
        -- include: wake_in_lists
        -- pcall: a list of a wrong type must not fail a release that was done.
        if ARGV[3] ~= '' and redis.pcall('ZREM', KEYS[4], ARGV[3]) == 1 then
            -- For callers there that were refused, and whose replies are on their way.
            publish(ARGV[4] .. client_of(ARGV[3]), 'r')
        end
        pcall(admit_readers, KEYS[3], KEYS[4], KEYS[5], ARGV[4], ARGV[5])
    end
end
return entered
