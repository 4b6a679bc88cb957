#!lua flags=allow-oom
-- Deletes a fenced lock, whoever holds it, and its counter. The next token is above the newest one all the same.
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter: the newest token
-- KEYS[3]  the newest token of a counter that was deleted: it is kept for a day
-- KEYS[4]  the clients that wait for it: a sorted set, see waiting_list.lua
-- KEYS[5]  the client that was woken: a hash
-- ARGV[1]  the lock's channel
-- ARGV[2]  the beginning of the names of the clients' channels
-- ARGV[3]  for how long others may come before the woken client, us
-- returns  1: something was deleted; 0: there was nothing
--
-- Not idempotent: a second run could delete the lock of the next holder. It is never sent again.
--
-- redis-cli --eval fenced_delete.lua orders redisson_lock_token:{orders} pyredisson_fenced_newest:{orders} pyredisson_waiting:{orders} pyredisson_woken:{orders} , redisson_lock__channel:{orders} pyredisson_wake:{orders}: 5000

-- include: publish
-- include: wake_in_list
local DAY = 86400000
-- pcall: a counter of a wrong type is deleted like any other.
local newest = redis.pcall('GET', KEYS[2])
-- DEL comes before the write that needs memory: older servers let a script continue that has begun to write.
local counters = redis.call('DEL', KEYS[2])
-- Smaller tokens are Java's: the tokens of pyredisson begin at the server's time. Larger ones can't be counted further.
if type(newest) == 'string' and string.match(newest, '^%d+$') and #newest >= 16 and tonumber(newest) < 2 ^ 53 then
    -- New tokens begin at the server's time. If the clock is set back by less than a day, this token is still known.
    local before = redis.pcall('GET', KEYS[3])
    before = type(before) == 'string' and tonumber(before) or 0
    if not (before >= tonumber(newest) and before < 2 ^ 53) then
        redis.call('SET', KEYS[3], newest, 'PX', DAY)
    end
end
local holder = redis.pcall('HKEYS', KEYS[1])[1]
if redis.call('DEL', KEYS[1]) == 0 then
    return counters
end
publish(ARGV[1], '0')
wake_client_of(holder, ARGV[2])
wake(KEYS[4], KEYS[5], ARGV[2], ARGV[3])
return 1
