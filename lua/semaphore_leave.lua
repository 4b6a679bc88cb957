#!lua flags=allow-oom
-- A client that waits for permits leaves the list, as no caller of it waits any more; or a waiter withdraws its claim.
--
-- KEYS[1]  the semaphore: the number of its free permits
-- KEYS[2]  the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]  the clients that were woken: a sorted set
-- KEYS[4]  the claim of a waiter that wants several permits: others leave it that many
-- ARGV[1]  the semaphore's channel
-- ARGV[2]  the names as which the client may be in the list, with spaces between them
-- ARGV[3]  the waiter whose claim is withdrawn; empty: none
-- returns  1: it was in the list, or had the claim; 0: neither
--
-- Others are woken for the permits that were left to it.
--
-- Idempotent: a second run finds nothing, as the client comes back under another name.
--
-- redis-cli --eval semaphore_leave.lua stock pyredisson_waiting:{stock} pyredisson_woken:{stock} pyredisson_semaphore_claim:{stock} , redisson_sc:{stock} me:1:1 me:1

-- include: publish
local waiting, woken, claim, channel = KEYS[2], KEYS[3], KEYS[4], ARGV[1]
-- include: permit_waiters
-- pcall: what is sent until it has run must not fail, whatever the types of the keys are.
local near, was_there = 0, false
for name in string.gmatch(ARGV[2], '%S+') do
    local place = tonumber(redis.pcall('ZRANK', waiting, name))
    near = near + (place and place < 2 and 1 or 0)
end
for name in string.gmatch(ARGV[2], '%S+') do
    was_there = redis.pcall('ZREM', waiting, name) == 1 or was_there
    redis.pcall('ZREM', woken, name)
end
local claimed = redis.pcall('GET', claim)
if ARGV[3] ~= '' and type(claimed) == 'string' and string.match(claimed, '^%d+ (.*)$') == ARGV[3] then
    redis.call('DEL', claim)
    was_there = true
end
if not was_there then
    return 0
end
local free = redis.pcall('GET', KEYS[1])
free = type(free) == 'string' and tonumber(free) or 0
if free > 0 then
    announce(free)
elseif near > 0 then
    -- The first two clients of the list listen to Redisson's messages.
    for _, member in ipairs(redis.call('ZRANGE', waiting, math.max(2 - near, 0), 1)) do
        tell(channels, member, 0)
    end
end
return 1
