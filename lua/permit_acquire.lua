#!lua
-- Acquires permits that end with their leases: all that were asked for, or none.
--
-- KEYS[1]    the semaphore: the number of its free permits
-- KEYS[2]    its permits in use: a sorted set, id -> when it ends, ms (922337203685477: never)
-- KEYS[3]    exists if the caller has withdrawn this call: it doesn't want these permits any more
-- KEYS[4]    the claim of a waiter that wants several permits: other callers leave it that many
-- KEYS[5]    the period of the claims: it begins with the first claim, and ends with the turn of the others
-- ARGV[1]    the semaphore's channel
-- ARGV[2]    the lease, ms (-1: endless)
-- ARGV[3]    the name under which to claim permits that can't be acquired now; empty: no claim
-- ARGV[i+3]  a new id for each permit
-- returns    nil: acquired; otherwise {ms after which to ask again, number of free permits} (-1: no such time; the time
--            is over when the next permit in use ends, or a claim); {-2, 0}: an earlier copy acquired them, and some of
--            them have ended since; {-3, 0}: there is no semaphore
--
-- Idempotent: the ids show a second run that the first run acquired the permits.
--
-- redis-cli --eval permit_acquire.lua p {p}:timeout pyredisson_permit_withdrawn:{p}:1 pyredisson_semaphore_claim:{p} pyredisson_semaphore_turn:{p} , redisson_sc:{p} 30000 '' 0123456789abcdef

-- include: publish
-- include: number_of
local claim, claims_period, caller = KEYS[4], KEYS[5], ARGV[3]
-- include: permit_claims
local forever = 922337203685477
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = forever
if ARGV[2] ~= '-1' then
    ends = math.min(now + ARGV[2], forever)
end
-- %.0f: Lua 5.1 would write a number of 15 digits as 9.2233720368548e+14.
ends = string.format('%.0f', ends)
if redis.call('EXISTS', KEYS[3]) == 1 then
    return {-1, 0}
end
local wanted = #ARGV - 3
local acquired = 0
for i = 4, #ARGV do
    if redis.call('ZSCORE', KEYS[2], ARGV[i]) then
        acquired = acquired + 1
    end
end
if acquired == wanted then
    for i = 4, #ARGV do
        -- Changes the score in any case, because WAIT waits only for what its own connection has written: the first
        -- copy, whose reply was lost, came over another one.
        redis.call('ZADD', KEYS[2], 'XX', 0, ARGV[i])
        redis.call('ZADD', KEYS[2], 'XX', ends, ARGV[i])
    end
    return false
end
if acquired > 0 then
    -- Some permits had ended before this copy arrived, and others may have acquired them. Or the copy is so late that
    -- some were released meanwhile. In both cases it must not change anything.
    return {-2, 0}
end
local free = number_of(KEYS[1])
if free == false then
    return NO_NUMBER
end
-- Frees no more ended permits than needed, and at most a thousand more than are wanted: a million of them at once would
-- block the server. From -inf on: a score below zero would be an end that never comes.
local limit = wanted + math.min(math.max(-(free or 0), 0), 1000)
local ended = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now), 'LIMIT', 0, limit)
for _, id in ipairs(ended) do
    redis.call('ZREM', KEYS[2], id)
end
if ended[1] then
    free = redis.call('INCRBY', KEYS[1], #ended)
end
if not free then
    return {-3, 0}
end
local claimed = free >= wanted and held_back(free, wanted) or 0
if free >= wanted and claimed == 0 then
    redis.call('DECRBY', KEYS[1], wanted)
    for i = 4, #ARGV do
        redis.call('ZADD', KEYS[2], ends, ARGV[i])
    end
    local semaphore_lasts = redis.call('PTTL', KEYS[1])
    if semaphore_lasts > 0 then
        redis.call('PEXPIRE', KEYS[2], math.min(semaphore_lasts, 2 ^ 53))
    end
    if caller ~= '' and redis.call('DEL', claim) == 1 and free > wanted then
        -- Because of the claim, other waiters left these permits when they were notified.
        publish(ARGV[1], string.format('%.0f', free - wanted))
    end
    return false
end
if ended[1] and free > 0 then
    -- Too few permits for this caller may be enough for another waiter.
    publish(ARGV[1], string.format('%.0f', free))
end
local next_end = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local remaining = -1
if next_end[1] and tonumber(next_end[2]) < forever then
    remaining = math.max(math.ceil(tonumber(next_end[2]) - now), 0)
end
local ask_again, claims = claimed, false
if caller ~= '' then
    ask_again, claims = make_claim(wanted)
end
if claims or claimed > 0 then
    free = 0
end
if ask_again > 0 and (remaining < 0 or ask_again < remaining) then
    remaining = ask_again
end
return {remaining, free}
