#!lua
-- Stores what a client says of itself and of its holds, in a key that ends if the client doesn't go on.
--
-- KEYS[1]  the client's key: a hash, with the number of the announcement in the field `n`
-- ARGV[1]  the number of this announcement, which grows by one
-- ARGV[2]  the number of the announcement that the server has confirmed last; 0: the hash is made anew
-- ARGV[3]  how long the key lives, ms
-- ARGV[4]  how many fields are removed; these fields follow
-- ARGV[i]  then field, value, age in ms, for each field that is stored. Age -1: the value is stored as it is. Otherwise
--          the moment that was so many ms ago, by the server's clock, is put in front of the value
-- returns  1: stored; 0: the server has another announcement, or none: the hash must be made anew; 2: this one is
--          stored already
--
-- Idempotent: a copy finds its own number, or a larger one.
--
-- redis-cli --eval client_announce.lua pyredisson_client:{me} , 1 0 30000 0 host web-3 -1 since '' 1000
local number, base, removed = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
-- pcall: a key of another type was written by somebody else, as a number beyond 2^53. The hash is made anew in its place.
local stored = tonumber(redis.pcall('HGET', KEYS[1], 'n'))
if stored and stored >= number and stored < 2 ^ 53 then
    return 2
end
if base == 0 then
    redis.call('DEL', KEYS[1])
elseif stored ~= base then
    return 0
elseif removed > 0 then
    redis.call('HDEL', KEYS[1], unpack(ARGV, 5, 4 + removed))
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fields = {'n', ARGV[1]}
for i = 5 + removed, #ARGV, 3 do
    local age = tonumber(ARGV[i + 2])
    fields[#fields + 1] = ARGV[i]
    fields[#fields + 1] = age < 0 and ARGV[i + 1] or string.format('%.0f', now - age) .. ARGV[i + 1]
end
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
