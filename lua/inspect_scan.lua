#!lua flags=no-writes,allow-cross-slot-keys
-- Looks at some of the keys of one server, and returns the ones that may belong to locks or to other objects.
--
-- ARGV[1]  where to begin: 0, or the first value of the reply before
-- ARGV[2]  about how many keys to look at
-- returns  {where the next call begins (0: all keys were looked at), how many keys this call has looked at,
--          the hashes that are locks,
--          keys that are companions of objects, or announcements of clients}
--
-- Idempotent: it only reads. A key may be returned several times, as SCAN does.
--
-- redis-cli --eval inspect_scan.lua , 0 256

-- include: inspect_class
local reply = redis.call('SCAN', ARGV[1], 'COUNT', ARGV[2])
local locks, companions = {}, {}

local function look_at(key)
    if string.find(key, '^pyredisson_') or string.find(key, '^redisson_lock_') then
        companions[#companions + 1] = key
        return
    end
    local kind = redis.call('TYPE', key)['ok']
    if kind == 'hash' then
        local class = class_of_hash(key)
        if class and class ~= 'rate-limiter' then
            locks[#locks + 1] = key
        end
    elseif kind == 'zset' and string.find(key, ':timeout$') and string.find(key, '{', 1, true) then
        -- The permits in use of a semaphore. Their ids have 16 bytes.
        local member = redis.call('ZRANGE', key, 0, 0)[1]
        if member and #member == 16 then
            companions[#companions + 1] = key
        end
    end
end

for _, key in ipairs(reply[2]) do
    local done, problem = pcall(look_at, key)
    if not done then
        -- In a slot that is being moved, a key may be on another server by now. The walk finds it there.
        local text = type(problem) == 'table' and problem['err'] or tostring(problem)
        if not string.find(text, 'access a non local key in a cluster node', 1, true) then
            error(problem, 0)
        end
    end
end
return {reply[1], #reply[2], locks, companions}
