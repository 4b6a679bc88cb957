#!lua flags=no-writes
-- Reads the state of one object with its companion keys, whatever kind of object it is, at one moment.
--
-- KEYS[1]   the object
-- KEYS[2]   the queue of a fair lock: a list of owners, the next one first
-- KEYS[3]   the scores of the queue: a sorted set, owner -> until when Redisson keeps its place, ms
-- KEYS[4]   the waiters of pyredisson: a hash, owner -> when it last asked for the lock, ms (0 or less: it has left)
-- KEYS[5]   the clients of pyredisson: a sorted set, client -> until when it counts as alive, ms
-- KEYS[6]   the counter of fencing tokens
-- KEYS[7]   the newest token of a counter that was deleted
-- KEYS[8]   the permits in use: a sorted set, id -> when it ends, ms
-- KEYS[9]   the claim of a waiter that wants several permits
-- KEYS[10]  the period of such claims
-- KEYS[11]  the claim of a writer that waits for readers
-- KEYS[12]  the period of such claims
-- KEYS[13]  the clients of pyredisson that wait for a lock: a sorted set
-- KEYS[14]  the client of them that was woken: a hash
-- KEYS[15]  the clients of pyredisson that wait to read: a sorted set
-- KEYS[16]  the prefix of the names of the readers' lease keys
-- ARGV[1]   how many owners, waiters and permits to return at most
-- ARGV[2]   the channel of a lock
-- ARGV[3]   the channel of a read-write lock
-- ARGV[4]   the channel of a semaphore
-- ARGV[5]   the channel of a latch
-- returns   {server's time, ms; the types of KEYS[1] to KEYS[15]; the PTTLs of these;
--           what the object is as a hash (empty: no lock), its mode, its number of fields, {field, value, ...},
--           {for each of these fields the longest remaining lease of a reader, ms (-2: there is none)};
--           the beginning of the object as a string (nil: it is none);
--           the length of the queue, {waiter, its score, when it last asked, until when its client counts as alive, ...}
--           (each of the last three empty: not known); the token (nil: none);
--           number of permits in use, number of permits that have ended and were not freed yet, {id, when it ends, ...};
--           {for each channel how many connections are subscribed (-1: not known); clients in the list count, too};
--           {the first entries of KEYS[13], and of KEYS[15]}}
--
-- Idempotent: it only reads.
--
-- redis-cli --eval inspect_state.lua orders redisson_lock_queue:{orders} redisson_lock_timeout:{orders} pyredisson_fair_waiters:{orders} pyredisson_fair_clients:{orders} redisson_lock_token:{orders} pyredisson_fenced_newest:{orders} {orders}:timeout pyredisson_semaphore_claim:{orders} pyredisson_semaphore_turn:{orders} pyredisson_rwlock_writer:{orders} pyredisson_rwlock_turn:{orders} pyredisson_waiting:{orders} pyredisson_woken:{orders} pyredisson_waiting_readers:{orders} {orders}: , 100 redisson_lock__channel:{orders} redisson_rwlock:{orders} redisson_sc:{orders} redisson_countdownlatch__channel__{orders}

-- include: inspect_class
local MOST_LEVELS = 100 -- of a reader, whose leases are read
local limit = tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local types, remaining = {}, {}
for i = 1, 15 do
    -- A companion key of another type is not ours, so nothing in it is read.
    types[i] = redis.call('TYPE', KEYS[i])['ok']
    remaining[i] = types[i] == 'none' and -2 or redis.call('PTTL', KEYS[i])
end

local class, mode, size, fields, leases = '', '', 0, {}, {}
if types[1] == 'hash' then
    class = class_of_hash(KEYS[1]) or ''
    size = redis.call('HLEN', KEYS[1])
    if size <= limit + 1 then
        fields = redis.call('HGETALL', KEYS[1])
    else
        fields = redis.call('HSCAN', KEYS[1], 0, 'COUNT', limit + 1)[2]
    end
end
if class == 'read-write' then
    mode = redis.call('HGET', KEYS[1], 'mode')
    for i = 1, #fields, 2 do
        local longest = -2
        for level = 1, math.min(tonumber(fields[i + 1]) or 0, MOST_LEVELS) do
            local lease = redis.call('PTTL', KEYS[16] .. fields[i] .. ':rwlock_timeout:' .. level)
            longest = math.max(longest, lease)
        end
        leases[#leases + 1] = longest
    end
end
local text = types[1] == 'string' and redis.call('GETRANGE', KEYS[1], 0, 31)

local length, waiters = 0, {}
if types[2] == 'list' then
    length = redis.call('LLEN', KEYS[2])
    local names = redis.call('LRANGE', KEYS[2], 0, limit - 1)
    local scores = types[3] == 'zset' and redis.call('ZMSCORE', KEYS[3], unpack(names)) or {}
    local asked_at = types[4] == 'hash' and redis.call('HMGET', KEYS[4], unpack(names)) or {}
    local alive_until = {}
    for i, name in ipairs(names) do
        local client = string.match(name, '^[^:]*')
        if not alive_until[client] then
            alive_until[client] = types[5] == 'zset' and redis.call('ZSCORE', KEYS[5], client) or ''
        end
        for _, value in ipairs({name, scores[i] or '', asked_at[i] or '', alive_until[client]}) do
            waiters[#waiters + 1] = value
        end
    end
end

local in_use, ended, permits = 0, 0, {}
if types[8] == 'zset' then
    local after = string.format('%.0f', now)
    in_use = redis.call('ZCOUNT', KEYS[8], after, '+inf')
    ended = redis.call('ZCARD', KEYS[8]) - in_use
    permits = redis.call('ZRANGEBYSCORE', KEYS[8], after, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
end

-- A client that follows both flavours of messages is subscribed twice, so the numbers can't be added.
local subscribed = {-1, -1, -1, -1}
for _, subcommand in ipairs({'NUMSUB', 'SHARDNUMSUB'}) do
    -- An error: the server is too old for sharded channels, or the user has no right to this.
    local counts = redis.pcall('PUBSUB', subcommand, unpack(ARGV, 2, 5))
    for i = 1, counts['err'] and 0 or 4 do
        subscribed[i] = math.max(subscribed[i], counts[2 * i])
    end
end
-- Some of the clients in a list listen to the lock's channel as well. Of a read-write lock one may be in both lists.
local entries = {}
local place = (class == 'read-write' or types[15] == 'zset') and 2 or 1
for _, list in ipairs({13, 15}) do
    if types[list] == 'zset' then
        subscribed[place] = math.max(subscribed[place], redis.call('ZCARD', KEYS[list]))
        for _, entry in ipairs(redis.call('ZRANGE', KEYS[list], 0, limit - 1)) do
            entries[#entries + 1] = entry
        end
    end
end

return {
    now, types, remaining, class, mode, size, fields, leases, text, length, waiters,
    types[6] == 'string' and redis.call('GETRANGE', KEYS[6], 0, 31), in_use, ended, permits, subscribed,
    entries,
}
