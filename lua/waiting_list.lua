-- Included by the scripts of locks whose waiting clients stand in a list on the server: what wait_in_list.lua and
-- wake_in_list.lua have in common.
--
-- waiting   the list: a sorted set, member -> the server's time at which it came, us; with a TTL. A member is CLIENT:NUMBER. A
--           client that leaves takes another number for the next time, so a late command never removes a later entry.
--           A read-write lock has a second list for readers, with members CLIENT:NUMBER:r.
-- woken     the member that was woken and has not come since: a hash with the fields member, came (its place in the list),
--           and exclusive (1: a free lock is reserved for its client). The TTL is for how long others leave it the lock.
--           Of a read-write lock also phase: when all readers were woken that had waited, us. They read at the same time.
-- channels  the beginning of the names of the clients' channels
--
-- A client that is told to try again, as the keys are in two places while the slot is being moved, leaves out the keys of the list.
-- No key is used again after it was removed: in a slot that is being moved, the server would end the script there.
local RESERVED = 250

local read_time
local function server_time()
    if not read_time then
        local time = redis.call('TIME')
        read_time = time[1] * 1000000 + time[2]
    end
    return read_time
end

local function client_of(member)
    return string.match(member, '^[^:]*')
end

local function is_reader(member)
    return string.sub(member, -2) == ':r'
end

-- Whether both members are of the same client, and of the same side of a lock.
local function is_same(member, other)
    return client_of(member) == client_of(other) and is_reader(member) == is_reader(other)
end

-- Whether a message has reached a client, as far as known. A client that can't be reached isn't there any more.
local function has_reached(receivers)
    return type(receivers) ~= 'number' or receivers > 0
end

-- A place in the list, as woken names it. Somebody else may have written it: then it is the last place.
local function place_of(came)
    local number = tonumber(came)
    return number and number >= 0 and number <= 2 ^ 53 and number or server_time()
end
