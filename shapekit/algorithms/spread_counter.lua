-- needs base exact counting periods period_counter
-- The twin of SpreadCounter in quota.py: same names, same steps.
--
-- A state is {the state of the counter, {start, due, cost of the last charge, for each of its periods}}; a receipt
-- is {civil time, due, due and cost of the charge before}.

local SpreadCounter = setmetatable({}, Counting)
SpreadCounter.__index = SpreadCounter
twins["spread_counter"] = SpreadCounter

-- spec: its name, limit, periods.
function SpreadCounter.new(spec)
    local counter = PeriodCounter.new(spec)
    return setmetatable({
        counter = counter,
        limit = counter.limit,
        max_cost = counter.max_cost,
        periods = counter.periods,
    }, SpreadCounter)
end

function SpreadCounter:thaw(frozen)
    local book, paces = unpack(frozen)
    if #frozen ~= 2 then damaged() end
    self.counter:thaw(book)
    self.counter:thaw(paces)
    for place = 3, #paces, 3 do
        if paces[place] < 1 or paces[place] > 1e12 then damaged() end
    end
    return frozen
end

function SpreadCounter:decide(s, now, skew, cost)
    if self:earliest(s, now, skew, cost) > now then
        return s, self:decision(s, now, skew, cost), 0, false
    end
    return self:charge(s, now, skew, now, cost)
end

function SpreadCounter:charge(s, now, skew, due, cost)
    local start, ends = self.periods:bounds(due + skew)
    local before_due, before_cost = self:pace_of(s, start, ends, now)
    local counted, decision, life = self.counter:charge(s and s[1], now, skew, due, cost)
    decision[4], decision[8] = 0, {due + skew, due, before_due, before_cost}
    return {counted, self:paced(s, counted, start, due, cost)}, decision, life, true
end

function SpreadCounter:earliest(s, at, skew, cost)
    if not s then return at end
    while true do
        at = self.counter:earliest(s[1], at, skew, cost)
        local start, ends = self.periods:bounds(at + skew)
        local used, opened = self.counter:found(s[1], start, ends, at)
        local due, units = self:pace_of(s, start, ends, at)
        local ready = self:ready(used, due, units, ends - skew)
        if ready <= at then return at end
        -- A new period starts its own pace, as does a period that is no longer remembered.
        local later = math.min(ready, ends - skew, opened + 2 * (ends - start))
        if later <= at then damaged() end
        at = later
    end
end

function SpreadCounter:spent(s, at, skew, cost)
    -- Only the counter can be spent: a paced call waits for units that are still left.
    return s and self.counter:spent(s[1], at, skew, cost) or false
end

function SpreadCounter:forecast(s, now, skew, cost)
    local counted = self.counter:forecast(s and s[1], now, skew, cost)
    local admits_at = self:earliest(s, now, skew, cost)
    return {admits_at, admits_at == now and 1 or 0, counted[3]}
end

function SpreadCounter:refund(s, now, skew, cost, receipt)
    return self:given_back(s, now, skew, cost, receipt, false)
end

function SpreadCounter:refund_passed(s, now, skew, cost, receipt)
    return self:given_back(s, now, skew, cost, receipt, true)
end

function SpreadCounter:given_back(s, now, skew, cost, receipt, has_passed)
    local civil, charged = receipt, nil
    if type(receipt) == "table" then civil, charged = receipt[1], receipt[2] end
    local counted, _, _, persist
    if has_passed then
        counted, _, _, persist = self.counter:refund_passed(s[1], now, skew, cost, civil)
    else
        counted, _, _, persist = self.counter:refund(s and s[1], now, skew, cost, civil)
    end
    if not persist then return s, self:peek(s, now, skew), 0, false end
    local start, ends = self.periods:bounds(civil)
    local due, units = self:pace_of(s, start, ends, now)
    if charged and due == charged then
        -- This is the newest charge: keep the rest of it, or else the one before. A part of that may have been
        -- given back meanwhile, but it cannot be more than is used.
        units = units - cost
        if units <= 0 then
            local used = self.counter:found(counted, start, ends, now)
            due, units = receipt[3], math.min(receipt[4], used)
        end
    end
    return self:settled({counted, self:paced(s, counted, start, due, units)}, now, skew)
end

function SpreadCounter:debit(s, now, skew, cost)
    local counted, decision = self.counter:debit(s and s[1], now, skew, cost)
    local civil = decision[8]
    local start, ends = self.periods:bounds(civil)
    local before_due, before_cost = self:pace_of(s, start, ends, now)
    local used = self.counter:found(s and s[1], start, ends, now)
    -- A debt takes its part of the time after the other charges, as a waiting call would.
    local due = math.max(civil - skew, self:ready(used, before_due, before_cost, ends - skew))
    local after = {counted, self:paced(s, counted, start, due, cost)}
    return self:settled(after, now, skew, {civil, due, before_due, before_cost})
end

function SpreadCounter:shifted(s, moved, skew)
    local book, paces = self.counter:shifted(s[1], moved, skew), s[2]
    local due, cost = 0, 0
    for index = 1, #paces, 3 do
        if cost == 0 or paces[index + 1] > due then due, cost = paces[index + 1], paces[index + 2] end
    end
    local start = self.periods:bounds(moved.newest + moved.by)
    return {book, self:paced(s, book, start, due, cost)}
end

function SpreadCounter:crowded(s, moved, skew)
    return self.counter:crowded(s[1], moved, skew)
end

function SpreadCounter:life(s, now)
    return self.counter:life(s[1], now)
end

-- inside

function SpreadCounter:ready(used, due, cost, ends)
    if cost == 0 then return 0 end
    local left = self.limit - used + cost
    if left <= cost then return ends end
    return due + Exact.up(Exact.part(math.max(0, ends - due), cost, left))
end

-- The last charge in the period from `start` to `ends`, if it is remembered.
function SpreadCounter:pace_of(s, start, ends, now)
    if s and self.counter:found(s[1], start, ends, now) ~= 0 then
        local paces = s[2]
        local index = self.counter:place_of(paces, start)
        if paces[index] == start then return paces[index + 1], paces[index + 2] end
    end
    return 0, 0
end

-- The paces of the periods in a book, with this one set.
function SpreadCounter:paced(s, book, start, due, cost)
    local paces, after = s and s[2] or {}, {}
    local place = self.counter:place_of(paces, start)
    local behind = paces[place] == start and place + 3 or place
    for index = 1, place - 1 do after[index] = paces[index] end
    if cost > 0 and book[self.counter:place_of(book, start)] == start then
        after[place], after[place + 1], after[place + 2] = start, due, cost
    end
    local moved = #after - behind + 1
    for index = behind, #paces do after[index + moved] = paces[index] end
    if #after <= #book then return after end
    local known = {}
    for index = 1, #after, 3 do
        if book[self.counter:place_of(book, after[index])] == after[index] then
            for place = index, index + 2 do known[#known + 1] = after[place] end
        end
    end
    return known
end

function SpreadCounter:decision(s, now, skew, cost)
    local told = self.counter:peek(s and s[1], now, skew)
    local wait = self:earliest(s, now, skew, cost) - now
    told[1], told[6] = wait == 0 and 1 or 0, wait
    told[4] = self:earliest(s, now, skew, 1) == now and 1 or 0
    return told
end
