-- Included, behind publish_*.lua, by scripts that free a lock: they wake the clients of the list of waiting_list.lua.

-- include: waiting_list
-- include: tell_in_list
local MOST_DEAD = 1000

-- Wakes all clients of this server that listen, as it isn't known which of them is the first.
local function wake_all(channels)
    local told = {}
    -- pcall: a user without a right to PUBSUB, or an older server.
    for _, kind in ipairs({'CHANNELS', 'SHARDCHANNELS'}) do
        for _, channel in ipairs(redis.pcall('PUBSUB', kind, string.gsub(channels, '[*?%[%]\\]', '\\%0') .. '*')) do
            if not told[channel] then
                told[channel] = true
                publish(channel, '0')
            end
        end
    end
end

-- The lock was released: wakes the first client, unless one was woken and has not come. The client behind the woken one is
-- told when to look, in case that the woken one never comes.
-- patience: how long others may come before the woken client, us since it came to the list. leaver: a member that waits no
-- longer, even if it was woken. Returns whether a client is about to come, and whether one behind it was told.
local function wake_first(waiting, woken, channels, patience, leaver)
    if not waiting then
        return wake_all(channels)
    end
    local now = server_time()
    local found = redis.call('HMGET', woken, 'member', 'came')
    if found[1] and found[1] ~= leaver then
        if now - place_of(found[2]) >= tonumber(patience) then
            redis.call('HSET', woken, 'exclusive', '1')
        end
        return true, tell_first(waiting, channels, math.max(math.min(redis.call('PTTL', woken), RESERVED), 0))
    end
    for _ = 1, MOST_DEAD do
        local first, came, second = unpack(redis.call('ZRANGE', waiting, 0, 1, 'WITHSCORES'))
        if not first then
            return false
        end
        redis.call('ZREM', waiting, first)
        if has_reached(publish(channels .. client_of(first), first)) then
            local exclusive = now - came >= tonumber(patience) and '1' or '0'
            redis.call('HSET', woken, 'member', first, 'came', came, 'exclusive', exclusive)
            redis.call('PEXPIRE', woken, RESERVED)
            if second and tell(channels, second, RESERVED) then
                -- As usual, without another look at the list.
                return true, second
            end
            return true, second and tell_first(waiting, channels, RESERVED)
        end
        if not second then
            return false
        end
    end
    return false
end

-- The same for a lock that may have two lists: wakes the first client of `list`, or else of `other`. If nobody stands behind
-- the woken client in its list, the first one of the other list looks, in case that the woken one never comes.
local function wake_either(list, other, woken, channels, patience, leaver)
    local woke, told = wake_first(list, woken, channels, patience, leaver)
    if not other or woke and told then
        return woke
    elseif not woke then
        return wake_first(other, woken, channels, patience, leaver)
    end
    tell_first(other, channels, RESERVED)
    return true
end

-- `wake_first`, after the lock was released. pcall: keys of a wrong type must not fail a release that was done.
local function wake(...)
    pcall(wake_first, ...)
end

-- The owner doesn't hold the lock any more, and its client may not know that: wakes the callers there that rely on its release.
local function wake_client_of(owner, channels)
    if owner then
        publish(channels .. client_of(owner), '0')
    end
end
