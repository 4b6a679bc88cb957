-- Included by scripts that publish. pcall: a call of a user that may not publish on the channel must still take effect.
-- Returns how many clients of this server have received it, an error table if that isn't known.
local function publish(channel, message)
    return redis.pcall('PUBLISH', channel, message)
end
