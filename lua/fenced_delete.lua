#!lua flags=allow-oom
-- Removes a fenced lock, whoever holds it, and its counter; the next token is above the newest one all the same.
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter: the newest token
-- KEYS[3]  the newest token of a counter that was deleted: it stays for a day
-- ARGV[1]  the lock's channel
-- returns  1: something was removed; 0: there was nothing. A second run may hit the next holder: never sent again.
--
-- redis-cli --eval fenced_delete.lua orders redisson_lock_token:{orders} pyredisson_fenced_newest:{orders} , redisson_lock__channel:{orders}
local DAY = 86400000
-- pcall: a counter of a wrong type goes like any other.
local newest = redis.pcall('GET', KEYS[2])
-- Before anything is written that needs memory: older servers let a script go on that has begun to write.
local counters = redis.call('DEL', KEYS[2])
-- Smaller ones are Java's: ours begin at the server's time. Larger ones no script could count on from.
if type(newest) == 'string' and string.match(newest, '^%d+$') and #newest >= 16 and tonumber(newest) < 2 ^ 53 then
    -- New tokens begin at the server's time. Where that was set back by less than a day, this one is still known.
    local before = redis.call('GET', KEYS[3])
    if not before or tonumber(before) < tonumber(newest) then
        redis.call('SET', KEYS[3], newest, 'PX', DAY)
    end
end
if redis.call('DEL', KEYS[1]) == 0 then
    return counters
end
-- pcall: a user without permission on the channel must still be able to delete.
redis.pcall('PUBLISH', ARGV[1], '0')
return 1
