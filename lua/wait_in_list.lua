-- Included by scripts that acquire a lock, whose client may wait in the list of waiting_list.lua. Without the keys of the list
-- nobody is entered.

-- include: waiting_list
-- A client comes to a free lock. Returns for how many ms the lock is reserved for another one; 0: the client gets it. Then
-- also whether it is in the list, and whether it was woken: `arrive` needs that. It only reads.
local function come(waiting, woken, member)
    if not waiting then
        return 0
    end
    local found = redis.call('HMGET', woken, 'member', 'exclusive')
    local mine = found[1] and is_same(found[1], member)
    -- Readers keep no reader out.
    if found[2] == '1' and not mine and not (is_reader(found[1] or '') and is_reader(member)) then
        local lasts = redis.call('PTTL', woken)
        -- Otherwise somebody else has written it.
        if lasts >= 0 and lasts <= RESERVED then
            return math.max(lasts, 1)
        end
    end
    return 0, redis.call('ZSCORE', waiting, member), mine
end

-- The client gets the lock, and waits no longer. It can't fail, as `come` has read both keys.
local function arrive(waiting, woken, member, listed, mine)
    if listed then
        redis.call('ZREM', waiting, member)
    end
    if mine then
        redis.call('DEL', woken)
    end
end

-- Enters a client that was refused. One that is there keeps its place, and one that was woken gets its former place back.
-- Returns how many clients stand before it.
local function enter(waiting, woken, member, ttl)
    local found = redis.call('HMGET', woken, 'member', 'came')
    if found[1] and is_same(found[1], member) then
        redis.call('ZADD', waiting, string.format('%.0f', place_of(found[2])), member)
        redis.call('DEL', woken)
    else
        redis.call('ZADD', waiting, 'NX', string.format('%.0f', server_time()), member)
    end
    if redis.call('PTTL', waiting) < tonumber(ttl) then
        redis.call('PEXPIRE', waiting, ttl)
    end
    return redis.call('ZRANK', waiting, member)
end

-- An acquire was refused. ttl: for how long the list lasts, ms; 0: the caller doesn't wait, and isn't entered.
-- Returns the remaining ms. For a caller that waits they are the first of three numbers in a text; the second is how many
-- clients stand before it; the third is 1 if the holder is no client of this library, so its release doesn't tell the list.
-- most: of so many fields each is looked at; nil: the lock has one. With more, one of the holders may be such a client.
local function refused(lock, waiting, woken, member, ttl, remaining, most)
    if ttl == '0' or not waiting then
        return remaining
    end
    local foreign = most and redis.call('HLEN', lock) > most
    for _, holder in ipairs(foreign and {} or redis.call('HKEYS', lock)) do
        -- The automatic ids of this library begin at 2^32.
        foreign = foreign or holder ~= 'mode' and tonumber(string.match(holder, '^[^:]*:(%d+)') or 0) < 4294967296
    end
    return string.format('%d %d %d', remaining, enter(waiting, woken, member, ttl), foreign and 1 or 0)
end
