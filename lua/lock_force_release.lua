#!lua flags=allow-oom
-- Removes a lock, whoever holds it.
--
-- KEYS[1]  the lock
-- ARGV[1]  the lock's channel; empty: it has none
-- returns  1: the lock was held; 0: it was free
--
-- Not idempotent: a second run could remove the lock of the next holder. It is never sent again.
--
-- redis-cli --eval lock_force_release.lua orders , redisson_lock__channel:{orders}

-- include: publish
if redis.call('DEL', KEYS[1]) == 0 then
    return 0
end
if ARGV[1] ~= '' then
    publish(ARGV[1], '0')
end
return 1
