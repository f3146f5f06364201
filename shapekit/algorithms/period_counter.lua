-- needs base exact counting periods
-- The twin of PeriodCounter in quota.py: same names, same steps.
--
-- A state is {start, used, opened} for each period, flat, by start; a receipt is an instant of civil time.

local PeriodCounter = setmetatable({}, Counting)
PeriodCounter.__index = PeriodCounter
twins["period_counter"] = PeriodCounter
PeriodCounter.MAX_PERIODS = 2^9

-- spec: its name, limit, periods.
function PeriodCounter.new(spec)
    return setmetatable({
        limit = Exact.whole("limit", spec[2], 1, 1e12),
        max_cost = spec[2],
        periods = Periods.new(spec[3]),
    }, PeriodCounter)
end

-- With an arbitrary number of periods, the search for a free one might never end.
function PeriodCounter:thaw(frozen)
    if #frozen % 3 ~= 0 or #frozen > 3 * self.MAX_PERIODS then damaged() end
    check_numbers(frozen, #frozen)
    for index = 4, #frozen, 3 do
        if frozen[index] <= frozen[index - 3] then damaged() end
    end
    return frozen
end

function PeriodCounter:decide(s, now, skew, cost)
    local start, ends = self.periods:bounds(now + skew)
    local last = s and #s or 0
    if last > 0 and s[last - 2] == start and s[last] <= now and self:remembers_all(s, now) then
        local used = s[last - 1] + cost
        if used > self.limit then return s, self:decision(s, now, skew, cost), 0, false end
        local after = {}
        for index = 1, last do after[index] = s[index] end
        after[last - 1] = used
        return after,
            {1, self.limit, used, self.limit - used, ends - skew, 0, false, now + skew},
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
    local after = self:with(s, now, start, used, opened)
    return after,
        {1, self.limit, used, self.limit - used, ends - skew, 0, false, due + skew},
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
        -- If a double cannot hold that instant exactly, the loop would never end.
        if later <= at then damaged() end
        at = later
    end
end

function PeriodCounter:spent(s, at, skew, cost)
    if not s or #s == 0 or self:waits_until(s, at, skew) > at then return false end
    local start, ends = self.periods:bounds(at + skew)
    return self:found(s, start, ends, at) + cost > self.limit
end

function PeriodCounter:forecast(s, now, skew, cost)
    local told = Counting.forecast(self, s, now, skew, cost)
    told[3] = self:full_at(s, now)
    return told
end

function PeriodCounter:refund_many(s, now, skew, charges)
    if not s then return s end
    local after, done = {}, 1
    for _, charge in ipairs(charges) do
        local index = self:place_of(s, charge[1] + 1) - 3
        if index >= done then
            local start, ends = self.periods:bounds(s[index])
            if start == s[index] and charge[1] < ends and self:remembers(s[index + 2], start, ends, now) then
                local left = s[index + 1] - charge[2]
                for place = done, left > 0 and index + 2 or index - 1 do after[#after + 1] = s[place] end
                if left > 0 then after[#after - 1] = left end
                done = index + 3
            end
        end
    end
    if done == 1 then return s end
    for place = done, #s do after[#after + 1] = s[place] end
    return self:trimmed(after, now)
end

function PeriodCounter:refund_passed(s, now, skew, cost, receipt)
    local after, told, life, persist = self:refund(s, now, skew, cost, receipt)
    if not persist or s[#s] <= now or after[#after - 2] == s[#s - 2] then return after, told, life, persist end
    return self:settled(self:with(after, now, s[#s - 2], 0, s[#s]), now, skew)
end

function PeriodCounter:shifted(s, moved, skew)
    local starts, counts = self:shifted_counts(s, 3, moved)
    local opened, after = {}, {}
    for index = 1, #s, 3 do opened[s[index]] = s[index + 2] end
    for index = math.max(1, #starts - self.MAX_PERIODS + 1), #starts do
        local start = starts[index]
        local opens = start - skew
        local before = opened[start] or opens
        -- If time goes back, a period is remembered for longer.
        if moved.by < 0 then
            opens = math.max(before, opens)
        elseif start <= moved.present or before < opens then
            opens = before
        end
        after[#after + 1], after[#after + 2], after[#after + 3] = start, counts[start], opens
    end
    return after
end

function PeriodCounter:crowded(s, moved, skew)
    return self:too_full(s, 3, moved)
end

function PeriodCounter:bounds(at)
    return self.periods:bounds(at)
end

function PeriodCounter:together(charged_at)
    return (self.periods:bounds(charged_at))
end

function PeriodCounter:debit(s, now, skew, cost)
    local at = math.max(now, self:waits_until(s, now, skew))
    local start, ends = self.periods:bounds(at + skew)
    local used, opened = self:found(s, start, ends, now)
    -- A debt is capped at the largest number that a double holds exactly.
    used = math.min(used + cost, Exact.LARGEST)
    return self:settled(self:with(s, now, start, used, opened or start - skew), now, skew, at + skew)
end

-- inside

-- The index of the first period that begins at `start` or later.
function PeriodCounter:place_of(s, start)
    local low, high = 0, #s / 3
    while low < high do
        local middle = math.floor((low + high) / 2)
        if s[3 * middle + 1] < start then low = middle + 1 else high = middle end
    end
    return 3 * low + 1
end

function PeriodCounter:waits_until(s, at, skew)
    local latest = 0
    if not s then return latest end
    for index = self:place_of(s, at + skew + 1) + 2, #s, 3 do latest = math.max(latest, s[index]) end
    return latest > at and latest or 0
end

-- Whether a period is remembered: until twice its own length has passed. (The difference of the instants is
-- computed first, because the sum of all three might exceed 2^53.)
function PeriodCounter:remembers(opened, start, ends, now)
    return opened - now + 2 * (ends - start) > 0
end

-- `used, opened` of the period from `start` to `ends`, or 0 if it is not remembered.
function PeriodCounter:found(s, start, ends, now)
    local index = s and self:place_of(s, start)
    if s and s[index] == start and self:remembers(s[index + 2], start, ends, now) then
        return s[index + 1], s[index + 2]
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

-- Whether the period at this index is remembered.
function PeriodCounter:remembers_at(s, index, now)
    local start, ends = self.periods:bounds(s[index])
    return self:remembers(s[index + 2], start, ends, now)
end

-- A copy of the state without forgotten periods at its ends.
function PeriodCounter:trimmed(s, now)
    local first, last = 1, #s + 1
    while first < last and not self:remembers_at(s, first, now) do first = first + 3 end
    while first < last and not self:remembers_at(s, last - 3, now) do last = last - 3 end
    local after = {}
    for index = first, last - 1 do after[index - first + 1] = s[index] end
    return after
end

-- The state with one period set.
function PeriodCounter:with(s, now, start, used, opened)
    local after = self:trimmed(s or {}, now)
    local place = self:place_of(after, start)
    if after[place] ~= start then
        for index = #after, place, -1 do after[index + 3] = after[index] end
    end
    after[place], after[place + 1], after[place + 2] = start, used, opened
    local count = #after
    if count > 3 * self.MAX_PERIODS then
        after[count - 8] = after[count - 5]
        after[count - 7] = math.min(after[count - 7] + after[count - 4], Exact.LARGEST)
        after[count - 6] = math.max(after[count - 6], after[count - 3])
        for index = count - 5, count do after[index] = after[index + 3] end
    end
    return after
end

-- How long until the last of the periods ends, if each lasts `times` its length. No period is more than twice
-- as long as another, so a period that was opened much earlier than the newest is not the last. (The difference
-- of the instants is computed first.)
function PeriodCounter:longest(s, now, times)
    local newest, longest = 1, 0
    if not s or #s == 0 then return longest end
    for index = 4, #s, 3 do
        if s[index + 2] > s[newest + 2] then newest = index end
    end
    local start, ends = self.periods:bounds(s[newest])
    local since = s[newest + 2] - 2 * (ends - start)
    for index = 1, #s, 3 do
        if s[index + 2] >= since then
            start, ends = self.periods:bounds(s[index])
            longest = math.max(longest, s[index + 2] - now + times * (ends - start))
        end
    end
    return longest
end

function PeriodCounter:life(s, now)
    return self:longest(s, now, 2)
end

function PeriodCounter:full_at(s, now)
    return now + self:longest(s, now, 1)
end

function PeriodCounter:decision(s, now, skew, cost)
    local wait = self:earliest(s, now, skew, cost) - now
    local at = math.max(now, self:waits_until(s, now, skew))
    local start, ends = self.periods:bounds(at + skew)
    local used = self:found(s, start, ends, at)
    local full = used > 0 and ends - skew or now + wait
    local remaining = at > now and 0 or math.max(0, self.limit - used)
    return {wait == 0 and 1 or 0, self.limit, used, remaining, full, wait, false, false}
end
