#!lua flags=allow-oom
-- Returns who holds a lock, and for how long at most.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold; of a read-write lock with the field `mode`, too
-- returns  {PTTL of the lock (-1: it has no lease, -2: it is free), number of its owners, up to 64 of the owners; a
--          writer comes first}
--
-- Idempotent: it only reads.
--
-- redis-cli --eval lock_holder.lua orders ,
local MOST = 64
local found = {redis.call('PTTL', KEYS[1]), 0}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if field ~= 'mode' then
        found[2] = found[2] + 1
        if string.sub(field, -6) == ':write' then
            table.insert(found, 3, field)
        elseif #found < MOST + 2 then
            found[#found + 1] = field
        end
    end
end
return found
