#!lua
-- Takes a lock, or counts one more hold of its holder.
--
-- KEYS[1]  the lock: a hash, owner -> holds
-- ARGV[1]  owner
-- ARGV[2]  holds that the owner has after this call (1: a fresh hold); absolute, so a second run changes nothing
-- ARGV[3]  lease, ms
-- returns  nil: taken; else the time left to whoever holds it, ms (-1: endless);
--          -2: a further hold was asked for, but nobody holds the lock, so the owner's earlier hold is lost
--
-- redis-cli --eval lock_acquire.lua orders , me:1 1 30000
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
    if ARGV[2] ~= '1' then
        return left
    end
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return left
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
-- An inner hold never shortens the lease of an outer one.
if left < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return false
