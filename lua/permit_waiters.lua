-- Included, behind publish_*.lua, by the scripts of semaphores: which clients are woken when permits become free, and to whom
-- others leave permits. Needs `waiting`, `woken` and `claim` (keys, see below) and `channel`, where Redisson listens.
--
-- waiting  the clients that wait: a sorted set, member -> the server's time at which it came, us; with a TTL. A member is
--          CLIENT:NUMBER:NEED: so many permits are enough for one of the callers there. See waiting_list.lua.
-- woken    the members that were woken and have not come since: a sorted set, member -> until when others leave them permits, us.
--          They keep their places in the list meanwhile.
-- claim    a waiter that wants several permits may claim them, see permit_claims.lua: others leave it that many
--
-- A client is woken by `MEMBER PERMITS` on its channel; by ` PERMITS`, if the claim is there.
-- All clients that wait are subscribed to `channel` and to the one in `counted`: if more connections are subscribed to the first
-- one, clients of Redisson are among them.

-- include: wake_in_list
local MOST_LISTED, WOKEN_LASTS = 1000, 60000
local counted = 'py' .. channel
local channels = 'pyredisson_wake' .. string.sub(channel, #'redisson_sc' + 1) .. ':'

local function need_of(member)
    return tonumber(string.match(member, ':(%d+)$')) or 1
end

-- The members that were woken: the ones that are about to come, with the times until when others leave them permits, and the ones
-- that are late. They are read once. The reading of a key of another type fails.
local coming, late
local function read_woken()
    if coming then
        return
    end
    local found = redis.call('ZRANGE', woken, 0, MOST_LISTED, 'WITHSCORES')
    coming, late = {}, {}
    for i = 1, #found, 2 do
        local ends = tonumber(found[i + 1])
        -- A later time than any of these scripts writes is somebody else's.
        if ends > server_time() and ends <= server_time() + RESERVED * 1000 then
            coming[found[i]] = ends
        else
            late[found[i]] = true
        end
    end
end

-- The claim is about to be met if there are enough permits for it. Returns how many are left then for the clients in the list.
local function left_by_claim(free)
    local claimed, claimant = string.match(redis.call('GET', claim) or '', '^(%d+) (.*)$')
    if claimed and free >= tonumber(claimed) then
        publish(channels .. client_of(claimant), ' ' .. claimed)
    end
    return free - (claimed or 0)
end

-- Wakes a member for so many permits. False: its client isn't there any more.
local function wake_member(member, permits, ends)
    if not has_reached(publish(channels .. client_of(member), string.format('%s %.0f', member, permits))) then
        redis.call('ZREM', waiting, member)
        return false
    end
    coming[member] = ends
    redis.call('ZADD', woken, string.format('%.0f', ends), member)
    redis.call('PEXPIRE', woken, WOKEN_LASTS)
    return true
end

-- Whether the client of a member listens, as far as known. Nobody listens to the beginning of the channels' names.
local function is_there(member)
    return more_listen(channels .. client_of(member), channels)
end

-- Tells the first of these members when to look, unless its client is one of `clients`. Removes those whose clients are gone.
local function tell_next(members, clients)
    for _, member in ipairs(members) do
        if not clients[client_of(member)] then
            if tell(channels, member, RESERVED) then
                return
            end
            redis.call('ZREM', waiting, member)
        end
    end
end

-- Wakes the first clients for which so many free permits are enough, and tells the one behind them when to look, in case that a
-- woken one never comes.
local function wake_listed(free)
    read_woken()
    local awaited = 0
    for member in pairs(coming) do
        free, awaited = free - need_of(member), awaited + 1
    end
    local listed = free > 0 and redis.call('ZCARD', waiting) or 0
    if listed == 0 then
        return
    end
    -- They lose their places.
    for member in pairs(late) do
        listed = listed - redis.call('ZREM', waiting, member)
        redis.call('ZREM', woken, member)
    end
    late = {}
    local others = listed - awaited
    free = left_by_claim(free)
    local ends = server_time() + RESERVED * 1000
    local woke, clients, passed, at, looked = false, {}, {}, 0, 0
    while free > 0 or (woke and not passed[1]) do
        local members = redis.call('ZRANGE', waiting, at, at + math.min(math.max(free, 0) + 3, MOST_LISTED))
        for _, member in ipairs(members) do
            local need = need_of(member)
            at, looked = at + 1, looked + 1
            if coming[member] then
                -- It was woken before.
            elseif need > free then
                -- Nobody wakes it, so here is found out whether it is gone.
                if at <= 2 and not woke and not is_there(member) then
                    redis.call('ZREM', waiting, member)
                    at, others = at - 1, others - 1
                elseif not clients[client_of(member)] then
                    passed[#passed + 1] = member
                end
            else
                -- With fewer clients than permits the first one gets the rest for its other callers.
                if wake_member(member, math.max(need, woke and 0 or free - others + 1), ends) then
                    free, woke, clients[client_of(member)] = free - need, true, true
                else
                    at = at - 1
                end
            end
        end
        -- Members that were removed count, too.
        if not members[1] or looked > MOST_LISTED then
            break
        end
    end
    if woke then
        tell_next(passed, clients)
    end
end

-- Whether other clients stand in the list, or may: the entries behind so many of the client's own are not looked at.
local MOST_OWN = 4
local function others_wait(client)
    local members = redis.call('ZRANGE', waiting, 0, MOST_OWN)
    for _, member in ipairs(members) do
        if client_of(member) ~= client then
            return true
        end
    end
    return #members > MOST_OWN
end

-- So many permits are free: wakes clients of the list. pcall: what was done must not fail by keys of a wrong type.
local function wake(free)
    if not waiting then
        wake_all(channels)
    elseif free > 0 then
        pcall(wake_listed, free)
    end
end

-- The same, after permits became free. Redisson's clients hear of them, too. is_list: the list is known to be there. Returns
-- whether any may have heard.
local function announce(free, is_list)
    local heard = 0
    if free > 0 and (not waiting or not is_list and redis.call('EXISTS', waiting) == 0 or more_listen(channel, counted)) then
        heard = publish(channel, string.format('%.0f', free))
    end
    wake(free)
    return type(heard) ~= 'number' or heard > 0
end
