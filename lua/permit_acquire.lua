#!lua
-- Acquires permits that end with their leases: all that were asked for, or none.
--
-- KEYS[1]     the semaphore: the number of its free permits
-- KEYS[2]     the clients that wait: a sorted set, see permit_waiters.lua
-- KEYS[3]     the clients that were woken: a sorted set
-- KEYS[4]     the claim of a waiter that wants several permits: others leave it that many
-- KEYS[5]     the period of the claims: it begins with the first claim, and ends with the turn of the others
-- KEYS[6]     its permits in use: a sorted set, id -> when it ends, ms (922337203685477: never)
-- KEYS[7]     exists if the caller has withdrawn this call: it doesn't want these permits any more
-- ARGV[1]     the semaphore's channel
-- ARGV[2]     the lease, ms (-1: endless)
-- ARGV[3]     for how long others may come before a woken client, us since it came
-- ARGV[4]     the names as which the client may be in the list, with spaces between them
-- ARGV[5]     as which the client waits in the list if it is refused; empty: its caller doesn't wait
-- ARGV[6]     as which its other callers wait in the list if it acquires the permits; empty: there are none
-- ARGV[7]     for how long the list lasts, ms
-- ARGV[8]     the name under which to claim permits that can't be acquired now; empty: no claim
-- ARGV[i+8]   a new id for each permit
-- returns     nil: acquired; otherwise {ms after which to ask again, number of free permits, how many clients stand before this
--             one in the list, at most 63} (-1: no such time; the time is over when the next permit in use ends, or a claim);
--             {-2, 0}: an earlier copy acquired them, and some of them have ended since; {-3, 0, place}: there is no semaphore
--
-- Idempotent: the ids show a second run that the first run acquired the permits.
--
-- redis-cli --eval permit_acquire.lua p pyredisson_waiting:{p} pyredisson_woken:{p} pyredisson_semaphore_claim:{p} pyredisson_semaphore_turn:{p} {p}:timeout pyredisson_permit_withdrawn:{p}:1 , redisson_sc:{p} 30000 5000 '' me:1:1 '' 60000 '' 0123456789abcdef

local waiting, woken, claim, claims_period = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local FIRST = 9
local forever = 922337203685477
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = forever
if ARGV[2] ~= '-1' then
    ends = math.min(now + ARGV[2], forever)
end
-- %.0f: Lua 5.1 would write a number of 15 digits as 9.2233720368548e+14.
ends = string.format('%.0f', ends)
if redis.call('EXISTS', KEYS[7]) == 1 then
    return {-1, 0, 0}
end
local wanted = #ARGV - FIRST + 1
local acquired = 0
for i = FIRST, #ARGV do
    if redis.call('ZSCORE', KEYS[6], ARGV[i]) then
        acquired = acquired + 1
    end
end
if acquired == wanted then
    for i = FIRST, #ARGV do
        -- Changes the score in any case, because WAIT waits only for what its own connection has written: the first
        -- copy, whose reply was lost, came over another one.
        redis.call('ZADD', KEYS[6], 'XX', 0, ARGV[i])
        redis.call('ZADD', KEYS[6], 'XX', ends, ARGV[i])
    end
    return false
end
if acquired > 0 then
    -- Some permits had ended before this copy arrived, and others may have acquired them. Or the copy is so late that
    -- some were released meanwhile. In both cases it must not change anything.
    return {-2, 0}
end
-- include: free_permits
-- Frees no more ended permits than are needed here and by the clients that wait, of which only the first two look when
-- permits end. And at most 2,000 more than are wanted: a million of them at once would block the server. From -inf on: a
-- score below zero would be an end that never comes. Not in the millisecond of the end: the times are rounded down, and
-- the caller's lease counts from when it has sent its command.
local waiters = redis.call('ZCARD', waiting)
local limit = wanted + math.min(math.max(-(free or 0), 0), 1000) + math.min(waiters, 1000)
local ended = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', string.format('(%.0f', now), 'LIMIT', 0, limit)
if ended[1] then
    -- Before anything is changed: it fails if the key has another type.
    redis.call('GET', claim)
    for _, id in ipairs(ended) do
        redis.call('ZREM', KEYS[6], id)
    end
    free = redis.call('INCRBY', KEYS[1], #ended)
end

local function take()
    local left = redis.call('DECRBY', KEYS[1], wanted)
    for i = FIRST, #ARGV do
        redis.call('ZADD', KEYS[6], ends, ARGV[i])
    end
    local semaphore_lasts = redis.call('PTTL', KEYS[1])
    if semaphore_lasts > 0 then
        redis.call('PEXPIRE', KEYS[6], math.min(semaphore_lasts, 2 ^ 53))
    end
    return left
end

if free and free >= wanted and not ended[1] and ARGV[6] == '' and waiters == 0 and redis.call('EXISTS', woken, claim) == 0 then
    -- The usual case, without all that a list needs.
    take()
    return false
end
-- include: publish
local channel, patience, caller = ARGV[1], ARGV[3], ARGV[8]
-- include: permit_wait_in_list
read_time = time[1] * 1000000 + time[2]
if not free then
    return {-3, 0, enter(ARGV[4], ARGV[5], ARGV[7], 0)}
end
local claimed = free >= wanted and held_back(free, wanted) or 0
if free >= wanted and claimed == 0 then
    claimed = reserved_for_others(free, wanted, client_of(ARGV[5] .. ARGV[4]))
end
if free >= wanted and claimed == 0 then
    free = take()
    local had_claimed = caller ~= '' and redis.call('DEL', claim) == 1
    arrive(waiters > 0, ARGV[4] .. ' ' .. ARGV[5], ARGV[6], ARGV[7], free)
    if had_claimed or ended[1] then
        -- Because of the claim, others left these permits when they heard of them. Or nobody has heard that they are free.
        announce(free)
    end
    return false
end
if ended[1] then
    -- Too few permits for this caller may be enough for another waiter.
    announce(free)
end
local next_end = redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')
local remaining = -1
if next_end[1] and tonumber(next_end[2]) < forever then
    remaining = math.max(math.ceil(tonumber(next_end[2]) - now), 0)
end
local ask_again, claims = claimed, false
if caller ~= '' then
    ask_again, claims = make_claim(wanted)
end
local place = enter(ARGV[4], ARGV[5], ARGV[7], free)
if claims or claimed > 0 then
    free = 0
end
if ask_again > 0 and (remaining < 0 or ask_again < remaining) then
    remaining = ask_again
end
return {remaining, free, place}
