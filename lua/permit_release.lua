#!lua flags=allow-oom
-- Releases permits before their leases end. Also undoes an acquire that is in doubt.
--
-- KEYS[1]    the semaphore: the number of its free permits
-- KEYS[2]    its permits in use: a sorted set, id -> when it ends, ms
-- KEYS[3]    the clients that wait: a sorted set, see permit_waiters.lua. This and the next two may be left out, if the third one is
--            not needed: then all clients are woken
-- KEYS[4]    the clients that were woken: a sorted set
-- KEYS[5]    the claim of a waiter that wants several permits: others leave it that many
-- KEYS[i+5]  optional: a key that keeps a late copy of the acquire from acquiring these permits again
-- ARGV[1]    the semaphore's channel
-- ARGV[2]    1: release all of them or, if one is unknown or has ended, none; 0: release any that exist, ended or not
-- ARGV[i+2]  the ids of the permits
-- returns    empty: done; otherwise the number of unknown ids, then the ids that are unknown or have ended
--
-- Idempotent: a permit is freed once, because its id is removed from KEYS[2].
--
-- redis-cli --eval permit_release.lua p {p}:timeout pyredisson_waiting:{p} pyredisson_woken:{p} pyredisson_semaphore_claim:{p} , redisson_sc:{p} 1 0123456789abcdef

-- include: publish
local waiting, woken, claim, channel = KEYS[3], KEYS[4], KEYS[5], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all = ARGV[2] == '1'
local held = {}
local missing = {0}
for i = 3, #ARGV do
    local ends = redis.call('ZSCORE', KEYS[2], ARGV[i])
    if ends and (tonumber(ends) >= now or not all) then
        held[#held + 1] = ARGV[i]
    else
        missing[#missing + 1] = ARGV[i]
        if not ends then
            missing[1] = missing[1] + 1
        end
    end
end
if all and missing[2] then
    return missing
end
-- include: free_permits
for _, id in ipairs(held) do
    redis.call('ZREM', KEYS[2], id)
end
for i = 6, #KEYS do
    -- A minute longer than the client repeats a call that is in doubt.
    redis.call('SET', KEYS[i], '1', 'PX', 660000)
end
if held[1] then
    free = redis.call('INCRBY', KEYS[1], #held)
    if not waiting or redis.call('EXISTS', waiting) == 1 then
        -- include: permit_waiters
        read_time = time[1] * 1000000 + time[2]
        announce(free, waiting)
    elseif free > 0 then
        publish(channel, string.format('%.0f', free))
    end
end
return {}
