#!lua
-- Takes the write side of a read-write lock, or counts one more hold of its writer.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> holds, writer:write -> holds
-- KEYS[2]  the claim of a writer that waits for the readers to leave: while it exists, new readers hold back
-- KEYS[3]  the claims' period: it begins with the first claim and ends with the turn of the readers
-- ARGV[1]  writer, `:write` included
-- ARGV[2]  holds that the writer has after this call (1: a fresh hold); absolute, so a second run changes nothing
-- ARGV[3]  lease, ms
-- ARGV[4]  1: who asks is going to wait, and claims the lock if readers have it; 0: is not
-- returns  nil: taken; else how long to wait until asking again, ms (-1: endless);
--          -2: a further hold was asked for, but nobody holds the lock, so the writer's earlier hold is lost
--
-- redis-cli --eval write_acquire.lua orders pyredisson_rwlock_writer:{orders} pyredisson_rwlock_turn:{orders} , me:1:write 1 30000 0
local CLAIM, LOOK_AGAIN = 2000, 1000
-- All claims together hold readers back for this long at most; then no writer may claim during the readers' turn.
local IN_A_ROW, TURN = 5000, 1000

-- Claims the lock, where that is possible now. Returns after how many ms to ask again.
local function claim()
    local period = redis.call('PTTL', KEYS[3])
    if period < 0 then
        period = IN_A_ROW + TURN
        redis.call('SET', KEYS[3], '1', 'PX', period)
    end
    if period <= TURN then
        return period
    end
    -- A live claimant renews its claim; one that died holds up the readers no longer than that.
    local lasts = math.min(CLAIM, period - TURN)
    redis.call('SET', KEYS[2], ARGV[1], 'PX', lasts)
    return math.min(LOOK_AGAIN, lasts)
end

local left = redis.call('PTTL', KEYS[1])
if left == -2 then
    if ARGV[2] ~= '1' then
        return left
    end
    redis.call('HSET', KEYS[1], 'mode', 'write')
    -- Whosever it was: the readers have their turn before the next writer claims.
    redis.call('DEL', KEYS[2], KEYS[3])
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    if ARGV[4] == '1' and redis.call('HGET', KEYS[1], 'mode') == 'read' then
        local look_again = claim()
        if left < 0 or left > look_again then
            return look_again
        end
    end
    return left
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
-- An inner hold never shortens the lease of an outer one.
if left < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return false
