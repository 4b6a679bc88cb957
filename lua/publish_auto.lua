-- Included by scripts that publish. pcall: a call of a user that may not publish on the channel must still take effect.
-- A plain message goes to every node of the cluster. So it is left out if nobody has subscribed to it on this node, which
-- has the slot of the channel: that is where clients subscribe. Where one may not be there yet, the client sends the
-- script with the text of publish_both.lua.
-- Returns how many clients of this server have received the sharded message; an error table if plain messages were
-- published, too: it isn't known how many have received those.
local function publish(channel, message)
    -- A latch with a brace in its name has its channel on another slot, where a script can't publish a sharded message.
    if string.find(channel, '^redisson_countdownlatch__channel__{.*{') then
        redis.pcall('PUBLISH', channel, message)
        return {}
    end
    -- An error has no second element: for a user without a right to PUBSUB there may be a subscriber.
    local plain = redis.pcall('PUBSUB', 'NUMSUB', channel)[2] ~= 0
    if plain then
        redis.pcall('PUBLISH', channel, message)
    end
    local heard = redis.pcall('SPUBLISH', channel, message)
    -- An error: the server knows no sharded messages, or this user may not publish any.
    if not plain and type(heard) == 'table' then
        redis.pcall('PUBLISH', channel, message)
    end
    return plain and {} or heard
end

-- Whether more connections are subscribed to a channel than to another one, in either flavour. An error: for a user without a
-- right to PUBSUB that may be so, and a server that knows no sharded messages has no such subscribers.
local function more_listen(channel, than)
    local plain = redis.pcall('PUBSUB', 'NUMSUB', channel, than)
    local sharded = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel, than)
    return plain['err'] ~= nil or plain[2] > plain[4] or (not sharded['err'] and sharded[2] > sharded[4])
end
