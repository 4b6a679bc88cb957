#!lua flags=allow-oom
-- Takes back the claim of a waiter that waits no longer, so that others needn't leave it any permits.
--
-- KEYS[1]  the semaphore: its free permits
-- KEYS[2]  the claim: how many permits, and for whom
-- ARGV[1]  the semaphore's channel
-- ARGV[2]  the waiter
-- returns  1: taken back; 0: it had none. A second run changes nothing.
--
-- redis-cli --eval semaphore_give_up.lua stock pyredisson_semaphore_claim:{stock} , redisson_sc:{stock} me:1
local claimed = redis.call('GET', KEYS[2])
if not claimed or string.match(claimed, '^%d+ (.*)$') ~= ARGV[2] then
    return 0
end
redis.call('DEL', KEYS[2])
local free = redis.pcall('GET', KEYS[1])
if type(free) == 'string' and (tonumber(free) or 0) > 0 then
    -- pcall: whatever is at that name, and whoever may publish, the claim is gone.
    redis.pcall('PUBLISH', ARGV[1], free)
end
return 1
