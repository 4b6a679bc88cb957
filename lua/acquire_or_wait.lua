-- Included by the scripts that acquire a lock for one owner: answers here if the caller can't have it now. Needs `waiting` and
-- `woken`, the keys of the list. Behind it, `remaining` is the PTTL of the lock, and `listed` and `mine` are for `arrive`.
-- include: wait_in_list
local remaining = redis.call('PTTL', KEYS[1])
local reserved, listed, mine = 0, false, false
if remaining == -2 then
    -- Nobody holds the lock: the key is missing. Only a new hold can be acquired.
    if ARGV[2] ~= '1' then
        return -2
    end
    reserved, listed, mine = come(waiting, woken, ARGV[4])
    if reserved > 0 then
        return refused(KEYS[1], waiting, woken, ARGV[4], ARGV[5], reserved)
    end
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return refused(KEYS[1], waiting, woken, ARGV[4], ARGV[5], remaining)
end
