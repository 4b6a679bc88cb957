-- Included, behind publish_*.lua, by the scripts that acquire permits for clients which may wait, see permit_waiters.lua. Needs
-- what that and permit_claims.lua need, and `patience`: how long others may come before a woken client, us since it came.

-- include: permit_waiters
-- include: permit_claims
-- For how long some of the free permits are left to other clients, ms, if the caller can't have `wanted` beside them; 0: it can.
-- It only reads.
local function reserved_for_others(free, wanted, client)
    read_woken()
    local others, left, latest = {}, free, 0
    for member in pairs(coming) do
        if client_of(member) ~= client then
            others[#others + 1], left = member, left - need_of(member)
        end
    end
    if left >= wanted then
        return 0
    end
    for _, member in ipairs(others) do
        local came = tonumber(redis.call('ZSCORE', waiting, member))
        if came and server_time() - came >= tonumber(patience) then
            free, latest = free - need_of(member), math.max(latest, coming[member])
        end
    end
    return free < wanted and math.max(math.ceil((latest - server_time()) / 1000), 1) or 0
end

-- Removes a client under all names that it may have in the list. Returns since when it is there, and whether it was woken.
local function unlist(names)
    local listed, came = {}, nil
    for name in string.gmatch(names, '%S+') do
        local score = redis.call('ZSCORE', waiting, name)
        came = score and math.min(came or 2 ^ 53, place_of(score)) or came
        listed[#listed + 1] = name
        if coming then
            coming[name], late[name] = nil, nil
        end
    end
    local was_woken = listed[1] and redis.call('ZREM', woken, unpack(listed)) > 0
    if came then
        redis.call('ZREM', waiting, unpack(listed))
    end
    return came, was_woken
end

-- Enters a client under this name, at its place, or as the last one.
local function list(name, came, ttl)
    redis.call('ZADD', waiting, string.format('%.0f', came or server_time()), name)
    if redis.call('PTTL', waiting) < tonumber(ttl) then
        redis.call('PEXPIRE', waiting, ttl)
    end
end

-- The client has got its permits, and `free` are left. listed: whether there is a list. names: as which it may be in the list, also
-- by an earlier copy of this call. following: as which its other callers wait.
local function arrive(listed, names, following, ttl, free)
    local came, was_woken
    if listed then
        came, was_woken = unlist(names)
    end
    if came and not was_woken then
        -- It has heard Redisson's message: from now on the next two listen.
        for _, member in ipairs(redis.call('ZRANGE', waiting, 0, 1)) do
            tell(channels, member, RESERVED)
        end
    end
    if following ~= '' then
        list(following, nil, ttl)
    end
    if listed or following ~= '' then
        wake(free)
    end
end

-- The client was refused. name: as which it waits from now on; empty: its caller doesn't wait. Returns how many clients stand
-- before it, at most MOST_PLACE. Others may have the free permits, which aren't enough for it.
local MOST_PLACE = 63
local function enter(names, name, ttl, free)
    if name == '' then
        return 0
    end
    local came = unlist(names .. ' ' .. name)
    list(name, came, ttl)
    local place = redis.call('ZRANK', waiting, name)
    -- A client that asks again finds out whether the first two, which listen to Redisson, are gone.
    for _, first in ipairs(came and place >= 2 and redis.call('ZRANGE', waiting, 0, 1) or {}) do
        if not is_there(first) then
            redis.call('ZREM', waiting, first)
            place = place - 1
        end
    end
    wake(free)
    return math.min(place, MOST_PLACE)
end
