-- Included by scripts that acquire permits: a waiter that wants several permits may claim them. Then other callers
-- leave it that many. Needs `claim` (a key: the number of permits that are claimed, and the claimant), `claims_period`
-- (a key that bounds all claims together) and `caller` (the caller's name).
local CLAIM, ASK_AGAIN = 2000, 1000
-- Claims in a row hold other callers back for at most 5 s (IN_A_ROW). Then no claim is possible for 5 s (TURN).
local IN_A_ROW, TURN = 5000, 5000

-- How long the claim lasts, ms. A claim that lasts for longer than one of these scripts' was made by somebody else: it
-- ends as a new claim does.
local function claim_remaining()
    local remaining = redis.call('PTTL', claim)
    if remaining < 0 or remaining > CLAIM then
        redis.call('PEXPIRE', claim, CLAIM)
        return CLAIM
    end
    return math.max(remaining, 1)
end

-- For how long another waiter's claim keeps the caller from acquiring `wanted` of the free permits, ms; 0: it doesn't.
local function held_back(free, wanted)
    local claimed = redis.call('GET', claim)
    if not claimed then
        return 0
    end
    local needed, claimant = string.match(claimed, '^(%d+) (.*)$')
    if not needed or claimant == caller or free - wanted >= tonumber(needed) then
        return 0
    end
    return claim_remaining()
end

-- Claims `wanted` permits if that is possible now. Returns after how many ms to ask again, and whether it claimed.
local function make_claim(wanted)
    local claimed = redis.call('GET', claim)
    if claimed and string.match(claimed, '^%d+ (.*)$') ~= caller then
        return claim_remaining(), false
    end
    local period = redis.call('PTTL', claims_period)
    if period < 0 or period > IN_A_ROW + TURN then
        period = IN_A_ROW + TURN
        redis.call('SET', claims_period, '1', 'PX', period)
    end
    if period <= TURN then
        return math.max(period, 1), false
    end
    -- A living claimant renews its claim. The claim of a dead one ends after this time.
    local lasts = math.min(CLAIM, period - TURN)
    redis.call('SET', claim, string.format('%.0f %s', wanted, caller), 'PX', lasts)
    return math.min(ASK_AGAIN, lasts), true
end
