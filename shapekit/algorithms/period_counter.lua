-- needs base exact periods
-- The twin of period_counter.py: same names, same steps.
--
-- A state is {start, used, opened of each period}, by start; a receipt is the instant of civil time.
-- What Python keeps in a dictionary is looked up in that list: `book` makes a new one.

local PeriodCounter = setmetatable({}, Algorithm)
PeriodCounter.__index = PeriodCounter
twins.period_counter = PeriodCounter
PeriodCounter.MAX_PERIODS = 16

-- spec: "period_counter", limit, periods.
function PeriodCounter.new(spec)
    return setmetatable({
        limit = Exact.whole("limit", spec[2], 1, 1e12),
        max_cost = spec[2],
        periods = Periods.new(spec[3]),
    }, PeriodCounter)
end

-- With as many periods as somebody else likes, to look for one that is free might take for ever.
function PeriodCounter:thaw(frozen)
    if #frozen % 3 ~= 0 or #frozen > 3 * self.MAX_PERIODS then damaged() end
    check_numbers(frozen, #frozen)
    return frozen
end

function PeriodCounter:decide(s, now, skew, cost)
    local start, ends = self.periods:bounds(now + skew)
    local last = s and #s or 0
    if last > 0 and s[last - 2] == start and s[last] <= now and self:remembers_all(s, now) then
        local used = s[last - 1] + cost
        if used > self.limit then return s, self:decision(s, now, skew, cost), 0, false end
        local after = {unpack(s)}
        after[last - 1] = used
        return after,
            {1, self.limit, used, self.limit - used, ends - skew, 0, false, now + skew, 0},
            self:life(after, now), true
    end
    if self:earliest(s, now, skew, cost) > now then
        return s, self:decision(s, now, skew, cost), 0, false
    end
    return self:charge(s, now, skew, now, cost)
end

function PeriodCounter:charge(s, now, skew, due, cost)
    local start, ends = self.periods:bounds(due + skew)
    local used, opened = self:found(s, start, ends, now)
    used = used + cost
    opened = math.min(opened or start - skew, start - skew)
    local after = self:book(s, now, start, used, opened)
    return after,
        {1, self.limit, used, self.limit - used, ends - skew, 0, false, due + skew, 0},
        self:life(after, now), true
end

function PeriodCounter:earliest(s, at, skew, cost)
    if not s or #s == 0 then return at end
    at = math.max(at, self:waits_until(s, at, skew))
    while true do
        local start, ends = self.periods:bounds(at + skew)
        local used, opened = self:found(s, start, ends, at)
        if used + cost <= self.limit then return at end
        local later = math.min(ends - skew, opened + 2 * (ends - start))
        -- Where a double is too short for that instant, it would not come nearer.
        if later <= at then damaged() end
        at = later
    end
end

function PeriodCounter:spent(s, at, skew, cost)
    if not s or #s == 0 or self:waits_until(s, at, skew) > at then return false end
    local start, ends = self.periods:bounds(at + skew)
    return self:found(s, start, ends, at) + cost > self.limit
end

function PeriodCounter:peek(s, now, skew)
    return self:decision(s, now, skew, 1)
end

function PeriodCounter:forecast(s, now, skew, cost)
    local seen = self:peek(s, now, skew)
    local fits = 0
    if seen[1] == 1 then fits = math.floor(seen[4] / cost) end
    return {self:earliest(s, now, skew, cost), fits, self:full_at(s, now)}
end

function PeriodCounter:refund(s, now, skew, cost, receipt)
    if s and type(receipt) == "number" then
        for index = 1, #s, 3 do
            local start, ends = self.periods:bounds(s[index])
            if start <= receipt and receipt < ends and self:remembers(s[index + 2], start, ends, now) then
                local after = self:book(s, now, start, s[index + 1] - cost, s[index + 2])
                return self:settled(after, now, skew)
            end
        end
    end
    return s, self:peek(s, now, skew), 0, false
end

function PeriodCounter:debit(s, now, skew, cost)
    local at = math.max(now, self:waits_until(s, now, skew))
    local start, ends = self.periods:bounds(at + skew)
    local used, opened = self:found(s, start, ends, now)
    -- A debt beyond all counting is cut at the largest number that a double holds.
    used = math.min(used + cost, Exact.LARGEST)
    return self:settled(self:book(s, now, start, used, opened or start - skew), now, skew, at + skew)
end

-- inside

function PeriodCounter:waits_until(s, at, skew)
    local latest = 0
    for index = 1, s and #s or 0, 3 do
        local opened = s[index + 2]
        if opened > at and s[index] > at + skew then latest = math.max(latest, opened) end
    end
    return latest
end

-- Whether a period is remembered: until its own length has passed twice. (The difference of the
-- instants comes first, as all three together might pass 2^53.)
function PeriodCounter:remembers(opened, start, ends, now)
    return opened - now + 2 * (ends - start) > 0
end

-- What is remembered of the period from `start` to `ends`: `used, opened`, or 0.
function PeriodCounter:found(s, start, ends, now)
    for index = 1, s and #s or 0, 3 do
        if s[index] == start then
            local opened = s[index + 2]
            if self:remembers(opened, start, ends, now) then return s[index + 1], opened end
            break
        end
    end
    return 0
end

function PeriodCounter:remembers_all(s, now)
    for index = 1, #s, 3 do
        local start, ends = self.periods:bounds(s[index])
        if not self:remembers(s[index + 2], start, ends, now) then return false end
    end
    return true
end

-- The periods that are remembered, one of them anew.
function PeriodCounter:book(s, now, start, used, opened)
    local after = {}
    local function enter(a, b, c)
        local count = #after
        after[count + 1], after[count + 2], after[count + 3] = a, b, c
    end
    local placed = used <= 0
    for index = 1, s and #s or 0, 3 do
        local begun = s[index]
        if not placed and begun >= start then
            placed = true
            enter(start, used, opened)
        end
        if begun ~= start then
            local from, to = self.periods:bounds(begun)
            if self:remembers(s[index + 2], from, to, now) then enter(begun, s[index + 1], s[index + 2]) end
        end
    end
    if not placed then enter(start, used, opened) end
    while #after > 3 * self.MAX_PERIODS do
        for _ = 1, 3 do table.remove(after, 1) end
    end
    return after
end

function PeriodCounter:life(s, now)
    local longest = 0
    for index = 1, #s, 3 do
        local start, ends = self.periods:bounds(s[index])
        longest = math.max(longest, s[index + 2] - now + 2 * (ends - start))
    end
    return longest
end

function PeriodCounter:full_at(s, now)
    local latest = now
    for index = 1, s and #s or 0, 3 do
        local start, ends = self.periods:bounds(s[index])
        latest = math.max(latest, s[index + 2] + (ends - start))
    end
    return latest
end

function PeriodCounter:settled(s, now, skew, receipt)
    local decision = self:decision(s, now, skew, 1)
    decision[8] = receipt or false
    return s, decision, self:life(s, now), true
end

function PeriodCounter:decision(s, now, skew, cost)
    local wait = self:earliest(s, now, skew, cost) - now
    local at = math.max(now, self:waits_until(s, now, skew))
    local start, ends = self.periods:bounds(at + skew)
    local used = self:found(s, start, ends, at)
    local full = used > 0 and ends - skew or now + wait
    local remaining = at > now and 0 or math.max(0, self.limit - used)
    return {wait == 0 and 1 or 0, self.limit, used, remaining, full, wait, false, false, 0}
end
