-- Included, behind publish_*.lua and waiting_list.lua: tells the clients of a list when to look.

local MOST_DEAD = 1000

-- Tells a client that the lock may be free in so many ms, although nobody wakes it. Returns whether that has reached it.
local function tell(channels, member, ms)
    return has_reached(publish(channels .. client_of(member), string.format('look:%.0f', ms) .. (is_reader(member) and ':r' or '')))
end

-- The same for the first client of a list that can be reached; those before it are removed. Returns which one was told.
local function tell_first(list, channels, ms)
    for _ = 1, MOST_DEAD do
        local first, second = unpack(redis.call('ZRANGE', list, 0, 1))
        if not first or tell(channels, first, ms) then
            return first
        end
        redis.call('ZREM', list, first)
        if not second then
            return nil
        end
    end
end
