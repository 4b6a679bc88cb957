-- Included by scripts that take permits: a waiter that wants several may claim them, and others then leave it some.
-- Needs `claim` (a key: how many permits are claimed, and by whom), `turn` (a key that bounds all claims) and `me`.
local CLAIM, LOOK_AGAIN = 2000, 1000
-- All claims together hold others back for this long at most; then nobody may claim for the time of a turn.
local IN_A_ROW, TURN = 5000, 5000

-- How long the claim lasts, ms. Without an end it isn't ours: then it holds back nobody for longer than ours do.
local function claim_left()
    local left = redis.call('PTTL', claim)
    return left < 0 and CLAIM or math.max(left, 1)
end

-- For how long others' claim keeps the caller from taking so many of the free permits, ms; 0: it doesn't.
local function held_back(free, wanted)
    local claimed = redis.call('GET', claim)
    if not claimed then
        return 0
    end
    local needed, claimant = string.match(claimed, '^(%d+) (.*)$')
    if not needed or claimant == me or free - wanted >= tonumber(needed) then
        return 0
    end
    return claim_left()
end

-- Claims so many permits, where that is possible now. Returns after how many ms to ask again, and whether it did.
local function make_claim(wanted)
    local claimed = redis.call('GET', claim)
    if claimed and string.match(claimed, '^%d+ (.*)$') ~= me then
        return claim_left(), false
    end
    local period = redis.call('PTTL', turn)
    if period < 0 then
        period = IN_A_ROW + TURN
        redis.call('SET', turn, '1', 'PX', period)
    end
    if period <= TURN then
        return math.max(period, 1), false
    end
    -- A live claimant renews its claim; one that died holds up the others no longer than that.
    local lasts = math.min(CLAIM, period - TURN)
    redis.call('SET', claim, string.format('%.0f %s', wanted, me), 'PX', lasts)
    return math.min(LOOK_AGAIN, lasts), true
end
