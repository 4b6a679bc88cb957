#!lua
-- Runs a command that writes one key, unless a holder with a newer fencing token has written there.
--
-- KEYS[1]    the key
-- KEYS[2]    the newest token that was seen for this key
-- ARGV[1]    the token; the newest token may write several times
-- ARGV[2]    for how long the newest token is remembered from now on, ms
-- ARGV[3]    the command
-- ARGV[4..]  its arguments after the key
-- returns    {1, the reply of the command}; {0, the newest token}: refused
--
-- As idempotent as the command that it runs.
--
-- redis-cli --eval fenced_write.lua report pyredisson_fencing:{report} , 7 86400000 SET done

-- include: number_of
-- A newest token that is none is an error: without it, an old token can't be told from a new one.
local newest = number_of(KEYS[2])
if newest == false then
    return NO_NUMBER
end
if newest and newest > tonumber(ARGV[1]) then
    return {0, newest}
end
-- Before the command: a command that fails, too, shows that this token is in use.
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {1, redis.call(ARGV[3], KEYS[1], unpack(ARGV, 4))}
