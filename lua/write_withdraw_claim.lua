#!lua flags=allow-oom
-- Withdraws the claim of a writer that has stopped waiting, so that readers needn't wait for it.
--
-- KEYS[1]  the lock: a hash, `mode` -> read or write, reader -> number of levels, writer:write -> number of levels
-- KEYS[2]  the claim of a writer that waits for the readers to release the lock
-- ARGV[1]  the lock's channel
-- ARGV[2]  the prefix of all names of that writer
-- returns  1: withdrawn; 0: it had no claim
--
-- Idempotent: a second run finds no claim.
--
-- redis-cli --eval write_withdraw_claim.lua orders pyredisson_rwlock_writer:{orders} , redisson_rwlock:{orders} me:1:

-- include: publish
local claim = redis.call('GET', KEYS[2])
if not claim or string.sub(claim, 1, #ARGV[2]) ~= ARGV[2] then
    return 0
end
redis.call('DEL', KEYS[2])
-- While a writer holds the lock, readers wait for its release and need no message. pcall: the claim is removed,
-- whatever the type of KEYS[1].
if redis.pcall('HGET', KEYS[1], 'mode') ~= 'write' then
    publish(ARGV[1], '1')
end
return 1
