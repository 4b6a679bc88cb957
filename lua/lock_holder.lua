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
local MOST_LOOKS = 10000 -- number of fields that one call looks at for a writer, which has few beside it
local fields = redis.call('HKEYS', KEYS[1])
local found = {redis.call('PTTL', KEYS[1]), #fields - redis.call('HEXISTS', KEYS[1], 'mode')}
for i = 1, math.min(#fields, MOST_LOOKS) do
    local field = fields[i]
    if field ~= 'mode' then
        local place = string.sub(field, -6) == ':write' and 3 or #found + 1
        if #found < MOST + 2 then
            table.insert(found, place, field)
        elseif place == 3 then
            found[3] = field
        end
    end
end
return found
