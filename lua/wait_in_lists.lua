-- Included, behind publish_*.lua, by the script that acquires the read side of a read-write lock: the readers of the list are let
-- in together.

-- include: wait_in_list
-- include: tell_in_list
local MOST_READERS = 1000

-- Whether a reader that came then was woken together with others, and is about to come. listed: its place in the list.
local function is_in_phase(woken, listed)
    return listed and tonumber(listed) < place_of(redis.call('HGET', woken, 'phase') or 0)
end

-- A reader gets the lock, and its client waits no longer, see `arrive`. If it had waited, a phase of readers begins: all that
-- wait are woken, as they may read, too. They keep their places until they come. Then the first writer may claim the lock.
local function arrive_reading(writers, readers, woken, member, channels, listed, mine)
    if (listed or mine) and redis.call('HEXISTS', woken, 'phase') == 0 then
        local others = 0
        for _, other in ipairs(redis.call('ZRANGE', readers, 0, MOST_READERS)) do
            -- Also its own client: other callers there may have been refused, and their replies be on their way.
            local reached = has_reached(publish(channels .. client_of(other), 'r'))
            if other ~= member and reached then
                others = others + 1
            elseif other ~= member then
                redis.call('ZREM', readers, other)
            end
        end
        -- pcall: the lock has been acquired.
        pcall(tell_first, writers, channels, 0)
        if others > 0 then
            redis.call('HSET', woken, 'phase', string.format('%.0f', server_time()))
            if redis.call('PTTL', woken) < 0 then
                redis.call('PEXPIRE', woken, RESERVED)
            end
        end
    end
    if mine then
        redis.call('HDEL', woken, 'member', 'came', 'exclusive')
    end
    arrive(readers, woken, member, listed, false)
end
