-- Included by the scripts of both kinds of semaphore: reads the number of free permits (nil: there is no semaphore).
-- include: number_of
local free = number_of(KEYS[1])
if free == false then
    return NO_NUMBER
end
