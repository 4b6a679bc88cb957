-- Included by scripts that publish. pcall: a call of a user that may not publish on the channel must still take effect.
-- Returns how many clients of this server have received it, an error table if that isn't known.
local function publish(channel, message)
    return redis.pcall('PUBLISH', channel, message)
end

-- Whether more connections are subscribed to a channel than to another one. An error: for a user without a right to PUBSUB that
-- may be so.
local function more_listen(channel, than)
    local counts = redis.pcall('PUBSUB', 'NUMSUB', channel, than)
    return counts['err'] ~= nil or counts[2] > counts[4]
end
