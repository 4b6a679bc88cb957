#!lua
-- Acquires a fenced lock, or adds a level to its owner's hold; each time with a token above all earlier ones.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- KEYS[2]  the newest token: a number; it stays when the lock is free
-- KEYS[3]  the newest token of a counter that was deleted
-- ARGV[1]  the owner
-- ARGV[2]  how many levels the owner's hold has after this call (1: a new hold)
-- ARGV[3]  the lease, ms
-- returns  {token}: acquired; otherwise the remaining lease of the holder, ms (-1: endless);
--          -2: another level was asked for, but nobody holds the lock: the owner's hold is lost
--
-- Idempotent: the number of levels is absolute. A second run only leaves a gap between tokens.
--
-- redis-cli --eval fenced_acquire.lua orders redisson_lock_token:{orders} pyredisson_fenced_newest:{orders} , me:1 1 30000
local remaining = redis.call('PTTL', KEYS[1])
if remaining == -2 then
    -- Nobody holds the lock: the key is missing. Only a new hold can be acquired.
    if ARGV[2] ~= '1' then
        return -2
    end
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return remaining
end
-- Before the lock is changed: INCR fails if the key holds no number.
local token = redis.call('INCR', KEYS[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if token < 10 ^ 15 then
    -- This token is below the server's time, at which the tokens of pyredisson begin: the counter was deleted, or Java
    -- has begun a new one. The clock may have been set back since the deletion, so the deleted token counts, too.
    now = math.max(now, tonumber(redis.call('GET', KEYS[3]) or 0) + 1)
end
if token < now then
    -- Tokens begin at the server's time, so they continue above earlier tokens after the key was deleted.
    token = now
    redis.call('SET', KEYS[2], string.format('%.0f', now))
elseif token >= 2 ^ 53 then
    return redis.error_reply('ERR the token is beyond 2^53, where scripts can no longer tell one from the next')
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
-- Another level never shortens the lease of the hold.
if remaining < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {token}
