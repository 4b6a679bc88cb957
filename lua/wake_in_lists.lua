-- Included, behind publish_*.lua, by the scripts of a read-write lock that wake clients: writers stand in one list, readers in
-- another.

-- include: wake_in_list
-- The lock is free. After a writer it is the readers' turn, and all that have waited by then read at the same time: it goes on as
-- long as one of these waits. Then it is the next writer's turn.
local function wake_next(writers, readers, woken, channels, patience, after_writer, leaver)
    local first, came = unpack(redis.call('ZRANGE', readers, 0, 0, 'WITHSCORES'))
    local phase = place_of(redis.call('HGET', woken, 'phase') or 0)
    if first and (after_writer or tonumber(came) < phase) then
        return wake_either(readers, writers, woken, channels, patience, leaver)
    end
    return wake_either(writers, readers, woken, channels, patience, leaver)
end

-- Readers may read, and writers have to wait: wakes the first reader, whom the others follow. Without one, the first writer is
-- told to claim the lock. If nobody follows that reader, the writer does so later, in case that the reader never comes.
local function admit_readers(writers, readers, woken, channels, patience, leaver)
    local woke, told = wake_first(readers, woken, channels, patience, leaver)
    if not told then
        tell_first(writers, channels, woke and RESERVED or 0)
    end
end

-- The claim of a writer is withdrawn: the next writer claims the lock at once. In case that it doesn't, the first reader looks later.
local function replace_claim(writers, readers, woken, channels, patience, leaver)
    for _, writer in ipairs(redis.call('ZRANGE', writers, 0, MOST_DEAD)) do
        if has_reached(publish(channels .. client_of(writer), writer)) then
            tell_first(readers, channels, RESERVED)
            return
        end
        redis.call('ZREM', writers, writer)
    end
    redis.call('HDEL', woken, 'phase')
    wake_first(readers, woken, channels, patience, leaver)
end
