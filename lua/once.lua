-- Included by scripts that add instead of stating a result: a call that comes twice, or late, runs once.
-- The last key of the script remembers the latest call on a lane, as "number result"; ARGV[1] is the number of
-- this call, and numbers only grow on a lane.
local last, outcome = string.match(redis.call('GET', KEYS[#KEYS]) or '', '^(%d+) (%-?%d+)$')
if last and tonumber(last) >= tonumber(ARGV[1]) then
    return tonumber(outcome)
end
-- To be called before anything is changed: should this write be refused, a repeated call would change it twice.
local function once(result)
    -- A minute longer than a client goes on asking for what this call did.
    redis.call('SET', KEYS[#KEYS], string.format('%s %.0f', ARGV[1], result), 'PX', 660000)
    return result
end
