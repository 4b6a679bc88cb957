#!lua flags=allow-oom
-- Gives back holds of the read side, down to a stated number; also undoes an acquire whose outcome is unknown.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> holds, writer:write -> holds
-- KEYS[2]  what the names of the readers' timeout keys begin with
-- KEYS[3]  the period of the waiting writers' claims, which ends when the lock is free
-- ARGV[1]  its channel
-- ARGV[2]  reader
-- ARGV[3]  holds that the reader has left; absolute, so a second run changes nothing
-- returns  1: the lock is free now; 0: still held, by whomever; nil: the reader holds nothing
--
-- redis-cli --eval read_release.lua orders {orders}: pyredisson_rwlock_turn:{orders} , redisson_rwlock:{orders} me:1 0
local lock, leases = KEYS[1], KEYS[2]
-- include: read_leases
local reader, hold = ARGV[2], tonumber(ARGV[3])
local holds = tonumber(redis.call('HGET', lock, reader) or 0)
if holds == 0 then
    return false
end
local longest = 0
for given_back = hold + 1, holds do
    longest = math.max(longest, time_left(reader, given_back))
    redis.call('DEL', lease_key(reader, given_back))
end
if hold > 0 then
    redis.call('HSET', lock, reader, ARGV[3])
    -- The longest lease of nested holds counts for all: the reader goes on in the belief that it has it.
    if longest > 0 and redis.call('PTTL', lease_key(reader, hold)) < longest then
        redis.call('SET', lease_key(reader, hold), '1', 'PX', longest)
    end
    return 0
end
redis.call('HDEL', lock, reader)
if redis.call('HGET', lock, 'mode') == 'write' then
    -- The lock lasts as long as its writer's lease, which stands nowhere else.
    return 0
end
if redis.call('HLEN', lock) > 1 then
    -- Where the lock lasts clearly longer than this reader's lease, it lasts for another's.
    if redis.call('PTTL', lock) > longest + 10 then
        return 0
    end
    longest = longest_lease()
    if longest > 0 then
        redis.call('PEXPIRE', lock, longest)
        return 0
    end
    -- Those who are left have let their leases end.
end
redis.call('DEL', lock, KEYS[3])
-- pcall: a user without permission on the channel must still be able to release.
redis.pcall('PUBLISH', ARGV[1], '0')
return 1
