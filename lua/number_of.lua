-- Included by scripts that need a key which is a number, as a semaphore or a latch has. Any other value is answered
-- with the error of INCRBY, before anything is changed: it belongs to somebody else, as a key of another type does.
local NO_NUMBER = redis.error_reply('ERR value is not an integer or out of range')

-- Returns the number; nil: there is no key; false: the answer is NO_NUMBER. `most`: the largest number, if that isn't 2^53,
-- beyond which Lua can't tell a number from the next one.
local function number_of(key, most)
    local value = redis.call('GET', key)
    if not value then
        return nil
    end
    local digits = value == '0' and value or string.match(value, '^%-?([1-9]%d*)$')
    -- The server's own limit is compared as a text.
    if not digits or #digits > 19 or (#digits == 19 and digits > '9223372036854775807') then
        return false
    end
    return tonumber(digits) <= (most or 2 ^ 53) and tonumber(value)
end
