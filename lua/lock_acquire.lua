#!lua
-- Acquires a lock, or adds a hold for the owner that has it.
--
-- KEYS[1]  the lock: a hash, owner -> number of holds
-- ARGV[1]  the owner
-- ARGV[2]  how many holds the owner has after this call (1: its first hold)
-- ARGV[3]  the lease, ms
-- returns  nil: acquired; otherwise the remaining lease of the holder, ms (-1: endless);
--          -2: a nested hold was asked for, but nobody holds the lock: the owner's earlier hold is lost
--
-- Idempotent: the number of holds is absolute.
--
-- redis-cli --eval lock_acquire.lua orders , me:1 1 30000
local remaining = redis.call('PTTL', KEYS[1])
if remaining == -2 then
    if ARGV[2] ~= '1' then
        return remaining
    end
elseif redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return remaining
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
-- A nested hold never shortens the lease of the outer hold.
if remaining < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return false
