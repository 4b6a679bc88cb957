#!lua
-- Acquires the write side of a read-write lock, or adds a level to its writer's hold.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the claim of a member of the list that waits for the readers: while it exists, new readers wait
-- KEYS[3]  the period of the claims: it begins with the first claim, and ends with the turn of the readers
-- KEYS[4]  the clients that wait for it: a sorted set, see waiting_list.lua
-- KEYS[5]  the client that was woken: a hash
-- ARGV[1]  the writer, `:write` included
-- ARGV[2]  how many levels the writer's hold has after this call (1: a new hold)
-- ARGV[3]  the lease, ms
-- ARGV[4]  the client, as a member of the list
-- ARGV[5]  for how long the list lasts if the client waits in it, ms; it also claims the lock if readers hold it; 0: it
--          doesn't wait
-- returns  nil: acquired; otherwise after how many ms to ask again (-1: no such time); -1000 - ms: the same, and the
--          lock is claimed; for a caller that waits also what wait_in_list.lua adds;
--          -2: another level was asked for, but nobody holds the lock: the writer's hold is lost
--
-- Idempotent: the number of levels is absolute, and a second claim replaces the first.
--
-- redis-cli --eval write_acquire.lua orders pyredisson_rwlock_writer:{orders} pyredisson_rwlock_turn:{orders} pyredisson_waiting:{orders} pyredisson_woken:{orders} , me:1:write 1 30000 me:1 60000

if ARGV[2] == '1' and redis.call('EXISTS', unpack(KEYS)) == 0 then
    -- The usual case, without all that a list needs.
    redis.call('HSET', KEYS[1], 'mode', 'write', ARGV[1], '1')
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    return false
end
-- include: wait_in_list
local CLAIM, ASK_AGAIN = 2000, 1000
-- Claims in a row hold readers back for at most 5 s (IN_A_ROW). Then no claim is possible for 1 s (TURN).
local IN_A_ROW, TURN = 5000, 1000
local MOST_HOLDERS = 32 -- see `refused`

-- Claims the lock if that is possible now. Returns after how many ms to ask again, and whether it is claimed.
local function claim()
    local period = redis.call('PTTL', KEYS[3])
    if period < 0 or period > IN_A_ROW + TURN then
        period = IN_A_ROW + TURN
        redis.call('SET', KEYS[3], '1', 'PX', period)
    end
    if period <= TURN then
        return period, false
    end
    -- A living claimant renews its claim. The claim of a dead one ends after this time.
    local lasts = math.min(CLAIM, period - TURN)
    redis.call('SET', KEYS[2], ARGV[4], 'PX', lasts)
    return math.min(ASK_AGAIN, lasts), true
end

local remaining = redis.call('PTTL', KEYS[1])
if remaining == -2 then
    -- Nobody holds the lock: the key is missing. Only a new hold can be acquired.
    if ARGV[2] ~= '1' then
        return -2
    end
    local reserved, listed, mine = come(KEYS[4], KEYS[5], ARGV[4])
    if reserved > 0 then
        return refused(KEYS[1], KEYS[4], KEYS[5], ARGV[4], ARGV[5], reserved)
    end
    redis.call('HDEL', KEYS[5], 'phase')
    arrive(KEYS[4], KEYS[5], ARGV[4], listed, mine)
    redis.call('HSET', KEYS[1], 'mode', 'write')
    -- Whichever writer made the claim: the lock is held now, and a new period begins with the next claim.
    redis.call('DEL', KEYS[2], KEYS[3])
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    if ARGV[5] ~= '0' and redis.call('HGET', KEYS[1], 'mode') == 'read' then
        local ask_again, claimed = claim()
        if remaining >= 0 then
            ask_again = math.min(ask_again, remaining)
        end
        remaining = claimed and -1000 - ask_again or ask_again
    end
    return refused(KEYS[1], KEYS[4], KEYS[5], ARGV[4], ARGV[5], remaining, MOST_HOLDERS)
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
-- Another level never shortens the lease of the hold.
if remaining < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return false
