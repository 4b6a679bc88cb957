"""Makes time pass for a fair lock on a real server, without waiting."""

AGE = """
local by = tonumber(ARGV[1])
for _, key in ipairs(KEYS) do
    local left = redis.call('PTTL', key)
    if left >= 0 then
        redis.call('PEXPIRE', key, left - by)
    end
end
for _, key in ipairs({KEYS[3], KEYS[5]}) do
    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
        redis.call('ZINCRBY', key, -by, member)
    end
end
local fields = redis.call('HGETALL', KEYS[4])
for i = 1, #fields, 2 do
    local at, rest = string.match(fields[i + 1], '^(%d+)(.*)$')
    if fields[i] == ':margin' then
        local ms, raised = string.match(fields[i + 1], '^(%d+) (%d+)$')
        redis.call('HSET', KEYS[4], fields[i], ms .. string.format(' %.0f', raised - by))
    elseif fields[i] ~= ':cursor' and at and at ~= '0' then
        redis.call('HSET', KEYS[4], fields[i], string.format('%.0f', at - by) .. rest)
    elseif not at then
        -- One that is gone, and until when.
        redis.call('HSET', KEYS[4], fields[i], string.format('%.0f', fields[i + 1] + by))
    end
end
"""
"""Makes all times that stand under the keys earlier by ARGV[1] ms: to the scripts it is as if these had passed."""
