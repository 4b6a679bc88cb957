#!lua flags=allow-oom
-- Renews the leases of many readers, and keeps each lock for as long as its reader's longest lease.
--
-- KEYS[i]     a read-write lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> ...
-- KEYS[n+1] on: the lease keys of all levels of the n readers. Their names are computed below. They are stated for a
--             node of a cluster whose slot is being moved: it refuses the call while a lock is on one node and a lease
--             key on another one, and serves it before and after that
-- ARGV[3i-2]  the prefix of the names of the lease keys of KEYS[i]
-- ARGV[3i-1]  a reader of KEYS[i]
-- ARGV[3i]    the lease, ms; 0: a fixed lease, which isn't extended. The lock itself must last for it all the same:
--             Redisson's renewal for another reader may have shortened the lock
-- returns     for each lock 1: still held; 0: this reader doesn't hold it
--
-- Idempotent: a lease is only ever extended.
--
-- redis-cli --eval read_renew.lua orders {orders}:me:1:rwlock_timeout:1 , {orders}: me:1 30000
local lock, leases
-- include: read_leases
local renewed = {}
for i = 1, #ARGV / 3 do
    local reader, lease = ARGV[3 * i - 1], tonumber(ARGV[3 * i])
    lock, leases = KEYS[i], ARGV[3 * i - 2]
    -- pcall: a key of a wrong type is no lock, and must not prevent the renewal of the other locks.
    local field = redis.pcall('HGET', lock, reader)
    local longest = 0
    if type(field) == 'string' then
        longest = lease
        local levels, is_damaged = levels_of(field)
        for level = 1, levels do
            local remaining = remaining_lease(reader, level)
            -- Also if the key is missing: without it, the release of another reader would remove the lock. Of a field
            -- that somebody else has written, it isn't known which levels there are.
            if lease > 0 and remaining < lease and (remaining ~= -2 or level == 1 or not is_damaged) then
                -- PEXPIRE first, as it needs no memory: older servers refuse SET in a script that has written nothing.
                if redis.call('PEXPIRE', lease_key(reader, level), lease) == 0 then
                    redis.call('SET', lease_key(reader, level), '1', 'PX', lease)
                end
            else
                longest = math.max(longest, remaining)
            end
        end
    end
    if longest > 0 and redis.call('PTTL', lock) < longest then
        redis.call('PEXPIRE', lock, longest)
    end
    renewed[i] = longest > 0 and 1 or 0
end
return renewed
