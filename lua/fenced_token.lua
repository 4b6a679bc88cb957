-- Included by scripts that acquire a fenced lock. Returns the next token of a counter, above all its earlier ones.
-- After an error: false, and the error reply.
local function next_token(counter, newest_before_delete)
    -- INCR fails if the key holds no number.
    local token = redis.call('INCR', counter)
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    if token < 10 ^ 15 then
        -- This token is below the server's time, at which the tokens of pyredisson begin: the counter was deleted, or
        -- Java has begun a new one. The clock may have been set back since the deletion, so the deleted token counts,
        -- too.
        -- pcall: whatever is no token was written by somebody else. Tokens end at 2^53.
        local newest = tonumber(redis.pcall('GET', newest_before_delete))
        if newest and newest < 2 ^ 53 then
            now = math.max(now, math.floor(newest) + 1)
        end
    end
    if token < now then
        -- Tokens begin at the server's time, so they continue above earlier tokens after the key was deleted.
        token = now
        redis.call('SET', counter, string.format('%.0f', now))
    elseif token >= 2 ^ 53 then
        -- pcall: without a right to this command the counter stays raised, which does no harm.
        redis.pcall('DECR', counter)
        return false, redis.error_reply(
            'ERR the token is beyond 2^53, where scripts can no longer tell one from the next')
    end
    return token
end
