#!lua flags=allow-oom
-- Removes a lock, whoever holds it.
--
-- KEYS[1]  the lock
-- ARGV[1]  its channel; empty: it has none
-- returns  1: it was held; 0: it was free. A second run may hit the next holder: never sent again.
--
-- redis-cli --eval lock_force_release.lua orders , redisson_lock__channel:{orders}
if redis.call('DEL', KEYS[1]) == 0 then
    return 0
end
if ARGV[1] ~= '' then
    -- pcall: a user without permission on the channel must still be able to release.
    redis.pcall('PUBLISH', ARGV[1], '0')
end
return 1
