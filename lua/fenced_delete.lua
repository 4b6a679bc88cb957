#!lua flags=allow-oom
-- Removes a fenced lock, whoever holds it, and its newest token; the next token is above it all the same.
--
-- KEYS[1]  the lock
-- KEYS[2]  the newest token
-- ARGV[1]  the lock's channel
-- returns  1: something was removed; 0: there was nothing. A second run may hit the next holder: never sent again.
--
-- redis-cli --eval fenced_delete.lua orders redisson_lock_token:{orders} , redisson_lock__channel:{orders}
local tokens = redis.call('DEL', KEYS[2])
if redis.call('DEL', KEYS[1]) == 0 then
    return tokens
end
-- pcall: a user without permission on the channel must still be able to delete.
redis.pcall('PUBLISH', ARGV[1], '0')
return 1
