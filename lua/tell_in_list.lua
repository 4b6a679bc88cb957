-- Included, behind publish_*.lua and waiting_list.lua: tells the clients of a list when to look.

local MOST_PASSED_OVER = 8

-- Tells a client that the lock may be free in so many ms, although nobody wakes it. Returns whether that has reached it.
local function tell(channels, member, ms)
    return has_reached(publish(channels .. client_of(member), string.format('look:%.0f', ms) .. (is_reader(member) and ':r' or '')))
end

-- The same for the first client of a list that can be reached. Returns which one was told. The others keep their places: they may
-- be about to subscribe.
local function tell_first(list, channels, ms)
    for _, member in ipairs(redis.call('ZRANGE', list, 0, MOST_PASSED_OVER)) do
        if tell(channels, member, ms) then
            return member
        end
    end
end
