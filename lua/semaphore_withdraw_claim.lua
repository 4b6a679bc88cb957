#!lua flags=allow-oom
-- Withdraws the claim of a waiter that has stopped waiting, so that other callers needn't leave it any permits.
--
-- KEYS[1]  the semaphore: the number of its free permits
-- KEYS[2]  the claim: the number of permits, and the claimant
-- ARGV[1]  the semaphore's channel
-- ARGV[2]  the waiter
-- returns  1: withdrawn; 0: it had no claim
--
-- Idempotent: a second run finds no claim.
--
-- redis-cli --eval semaphore_withdraw_claim.lua stock pyredisson_semaphore_claim:{stock} , redisson_sc:{stock} me:1

-- include: publish
local claimed = redis.call('GET', KEYS[2])
if not claimed or string.match(claimed, '^%d+ (.*)$') ~= ARGV[2] then
    return 0
end
redis.call('DEL', KEYS[2])
-- pcall: the claim is removed, whatever the type of KEYS[1].
local free = redis.pcall('GET', KEYS[1])
if type(free) == 'string' and (tonumber(free) or 0) > 0 then
    publish(ARGV[1], free)
end
return 1
