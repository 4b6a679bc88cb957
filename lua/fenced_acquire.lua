#!lua
-- Takes a fenced lock, or counts one more hold of its holder; each time with a token above all earlier ones.
--
-- KEYS[1]  the lock: a hash, owner -> holds
-- KEYS[2]  the newest token: a number; it stays when the lock is free
-- KEYS[3]  the newest token of a counter that was deleted
-- ARGV[1]  owner
-- ARGV[2]  holds that the owner has after this call (1: a fresh hold); absolute, so a second run leaves a gap
--          between tokens and changes nothing else
-- ARGV[3]  lease, ms
-- returns  {token}: taken; else the time left to whoever holds it, ms (-1: endless);
--          -2: a further hold was asked for, but nobody holds the lock, so the owner's earlier hold is lost
--
-- redis-cli --eval fenced_acquire.lua orders redisson_lock_token:{orders} pyredisson_fenced_newest:{orders} , me:1 1 30000
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
    if ARGV[2] ~= '1' then
        return left
    end
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return left
end
-- Before anything is taken: it fails where the key holds no number.
local token = redis.call('INCR', KEYS[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if token < 10 ^ 15 then
    -- No token of ours, which begin at the server's time: the counter was deleted, or Java began it anew. The clock
    -- may have been set back since it was deleted.
    now = math.max(now, tonumber(redis.call('GET', KEYS[3]) or 0) + 1)
end
if token < now then
    -- Tokens begin at the server's time, so they go on where they were when the key was deleted.
    token = now
    redis.call('SET', KEYS[2], string.format('%.0f', now))
elseif token >= 2 ^ 53 then
    return redis.error_reply('ERR the token is beyond 2^53, where scripts can no longer tell one from the next')
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
-- An inner hold never shortens the lease of an outer one.
if left < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {token}
