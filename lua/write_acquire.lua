#!lua
-- Takes the write side of a read-write lock, or counts one more hold of its writer.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> holds, writer:write -> holds
-- KEYS[2]  the claim of a writer that waits for the readers to leave
-- ARGV[1]  writer, `:write` included
-- ARGV[2]  holds that the writer has after this call (1: a fresh hold); absolute, so a second run changes nothing
-- ARGV[3]  lease, ms
-- ARGV[4]  1: who asks is going to wait, and claims the lock if readers have it; 0: is not
-- returns  nil: taken; else how long to wait until asking again, ms (-1: endless);
--          -2: a further hold was asked for, but nobody holds the lock, so the writer's earlier hold is lost
--
-- redis-cli --eval write_acquire.lua orders pyredisson_rwlock_writer:{orders} , me:1:write 1 30000 0
local CLAIM, LOOK_AGAIN = 2000, 1000
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
    if ARGV[2] ~= '1' then
        return left
    end
    redis.call('HSET', KEYS[1], 'mode', 'write')
    -- Whosever it was: the readers have their turn before the next writer claims.
    redis.call('DEL', KEYS[2])
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    if ARGV[4] == '1' and redis.call('HGET', KEYS[1], 'mode') == 'read' then
        redis.call('SET', KEYS[2], ARGV[1], 'PX', CLAIM)
        -- A live claimant renews its claim; one that died holds up the readers no longer than that.
        if left < 0 or left > LOOK_AGAIN then
            return LOOK_AGAIN
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
