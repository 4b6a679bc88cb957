-- Included by scripts that change a number relatively (count down, add permits): a call that arrives twice, or late,
-- takes effect exactly once. The last key of the script is the reply cache of the client's session slot. It stores the
-- latest call as "number result". ARGV[1] is the number of this call; the numbers of a slot only grow. A call whose
-- number isn't larger than the stored one is a copy, and is answered with the stored result.
local last_number, last_result = string.match(redis.call('GET', KEYS[#KEYS]) or '', '^(%d+) (%-?%d+)$')
last_number, last_result = tonumber(last_number), tonumber(last_result)
if last_number and (last_number > 2 ^ 53 or math.abs(last_result) > 2 ^ 53) then
    -- Written by somebody else.
    last_number, last_result = nil, nil
end
if last_number and last_number >= tonumber(ARGV[1]) then
    -- A write, because WAIT waits only for what its own connection has written: the first copy, whose reply was lost,
    -- came over another one.
    redis.call('PEXPIRE', KEYS[#KEYS], 660000)
    return last_result
end
-- Records the result of this call. Must be called before anything is changed: if this write is refused (out of
-- memory, for instance) nothing has been changed, and the call can be repeated.
local function record(result)
    -- A minute longer than a client repeats this call.
    redis.call('SET', KEYS[#KEYS], string.format('%s %.0f', ARGV[1], result), 'PX', 660000)
    return result
end
