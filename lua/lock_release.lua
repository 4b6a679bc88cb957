#!lua flags=allow-oom
-- Releases levels of a hold, down to a stated number. Also undoes an acquire that is in doubt.
--
-- KEYS[1]  the lock: a hash, owner -> number of levels of its hold
-- ARGV[1]  the lock's channel (not a key: a user may publish there without a right to keys of that name); empty: none
-- ARGV[2]  the owner
-- ARGV[3]  how many levels remain (0: the lock becomes free)
-- returns  1: the lock is free now; 3: the same, and several clients have heard of it, or it isn't known how many;
--          0: still held; nil: the owner doesn't hold the lock
--
-- Idempotent: the number of levels is absolute, and an owner that doesn't hold the lock changes nothing.
--
-- redis-cli --eval lock_release.lua orders , redisson_lock__channel:{orders} me:1 0

-- include: publish
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
    return false
end
if ARGV[3] ~= '0' then
    redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
    return 0
end
redis.call('DEL', KEYS[1])
if ARGV[1] ~= '' then
    local receivers = publish(ARGV[1], '0')
    if type(receivers) ~= 'number' or receivers > 1 then
        return 3
    end
end
return 1
