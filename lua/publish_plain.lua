-- Included by scripts that publish. pcall: a call of a user that may not publish on the channel must still take effect.
local function publish(channel, message)
    redis.pcall('PUBLISH', channel, message)
end
