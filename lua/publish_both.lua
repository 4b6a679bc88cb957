-- Included by scripts that publish. pcall: a call of a user that may not publish on the channel must still take effect.
-- A client of Redisson on a cluster hears one of the two messages only, and clients of pyredisson hear both.
-- Returns an error table: how many clients have received it isn't known.
local function publish(channel, message)
    redis.pcall('PUBLISH', channel, message)
    -- A latch with a brace in its name has its channel on another slot, where a script can't publish a sharded message.
    if not string.find(channel, '^redisson_countdownlatch__channel__{.*{') then
        redis.pcall('SPUBLISH', channel, message)
    end
    return {}
end

-- Whether more connections are subscribed to a channel than to another one. Some may be subscribed on another node.
local function more_listen()
    return true
end
