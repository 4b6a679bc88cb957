-- Included after fair_queue by the scripts of the fair lock that enter its next owner.

-- Takes the head out of the queue: it has acquired the lock.
local function leave_as_head(head)
    drop(head, 'LPOP')
    if redis.call('EXISTS', KEYS[2]) == 0 then
        forget_queue()
        -- KEYS[4] may still name waiters that Redisson has dropped. Only the margin is kept.
        local raised = redis.call('HGET', KEYS[4], MARGIN_FIELD)
        redis.call('DEL', KEYS[4])
        if raised then
            redis.call('HSET', KEYS[4], MARGIN_FIELD, raised)
            redis.call('PEXPIRE', KEYS[4], text(MEMORY))
        end
    end
end
