-- Included by the scripts of the inspection: what a hash is, by one of its fields. A hash may have millions of fields, and
-- a small one is stored so that reading a few of its fields costs as much as reading all. So only one is looked at.
local UUID = string.rep('%x', 8) .. string.rep('%-%x%x%x%x', 3) .. '%-' .. string.rep('%x', 12)
local OWNER = '^' .. UUID .. ':%d' -- the name of an owner: client:owner...
local VALUE_OF_GROUP = '^' .. string.rep('[%w+/]', 22) -- a value that a multi-lock of Redisson locks in one hash

local function is_number(text)
    return text and string.find(text, '^[1-9]%d*$')
end

-- Returns 'lock', 'read-write', 'group' (several locks of Redisson in one hash), 'rate-limiter' (of Redisson), or nil.
local function class_of_hash(key)
    local field = redis.call('HRANDFIELD', key)
    if not field then
        return nil
    end
    if field == 'mode' or string.find(field, OWNER) then
        local mode = redis.call('HGET', key, 'mode')
        if mode == 'read' or mode == 'write' then
            return 'read-write'
        end
        return field ~= 'mode' and is_number(redis.call('HGET', key, field)) and 'lock' or nil
    end
    if string.find(field, VALUE_OF_GROUP) then
        if #field == 22 then
            return string.find(redis.call('HGET', key, field), OWNER) and 'group' or nil
        end
        local name, what = string.match(field, '^:(.*):([a-z_]+)$', 23)
        local of_group = what == 'expire_time' or what == 'lock_count'
        return of_group and string.find(name, OWNER) and 'group' or nil
    end
    if field == 'rate' or field == 'interval' or field == 'type' then
        local settings = redis.call('HMGET', key, 'rate', 'interval', 'type')
        return settings[1] and settings[2] and settings[3] and 'rate-limiter' or nil
    end
    return nil
end
