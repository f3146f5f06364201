-- needs base exact
-- The twin of gcra.py: same names, same steps.
--
-- A state is {tail, tail_rest, newest, retracted, retracted_rest, top, top_rest, and for each stretch
-- from, from_rest, to, to_rest}; a receipt is {position, rest}.

local Meter = setmetatable({}, Algorithm)
Meter.__index = Meter
twins.gcra = Meter

local plus, minus, less, later, up = Exact.plus, Exact.minus, Exact.less, Exact.later, Exact.up
local MAX_STRETCHES = 64
local COLD = {0, 0, 0, 0, 0, 0, 0}

-- spec: its name, burst, q, T, tau; T and tau as {whole, rest}.
function Meter.new(spec)
    local q = Exact.whole("q", spec[3], 1, 2^26)
    return setmetatable({
        burst = Exact.whole("burst", spec[2], 1, 1e12),
        max_cost = spec[2],
        q = q,
        p = Exact.whole("interval", spec[4][1], 0, 2^52),
        p_rest = Exact.whole("interval", spec[4][2], 0, q - 1),
        tau = Exact.whole("tau", spec[5][1], 0, 2^52),
        tau_rest = Exact.whole("tau", spec[5][2], 0, q - 1),
    }, Meter)
end

-- If nothing was ever given back, three numbers are enough.
function Meter:freeze(s)
    if #s == 7 and s[4] == 0 and s[5] == 0 and s[6] == s[1] and s[7] == s[2] then
        return {s[1], s[2], s[1] - s[3]}
    end
    return s
end

function Meter:thaw(frozen)
    -- A remainder of q or more would take a loop to reduce.
    if frozen[2] < 0 or frozen[2] >= self.q then damaged() end
    for place = 5, #frozen, 2 do
        if frozen[place] < 0 or frozen[place] >= self.q then damaged() end
    end
    if #frozen == 3 then
        local tail, rest, newest = unpack(frozen)
        return {tail, rest, tail - newest, 0, 0, tail, rest}
    end
    return frozen
end

function Meter:decide(s, now, skew, cost)
    local moved, wait, drained, drained_rest = self:admit(s, now, cost)
    if not moved then return s, self:decision(false, now, drained, drained_rest, wait), 0, false end
    return self:charged(moved, now, now)
end

-- An admission in short form: now, the position of the tail, and the receipt if it differs from that.
function Meter:check(s, now, skew, cost)
    local moved = self:admit(s, now, cost)
    if not moved then return self:decide(s, now, skew, cost) end
    local told = {now, moved[1], moved[2]}
    if moved[4] > 0 or moved[5] > 0 then told[4], told[5] = moved[6], moved[7] end
    return moved, told, self:life(moved, now), true
end

-- The state after a call of `cost`; or nil, how long to wait, and the position.
function Meter:admit(s, now, cost)
    local q = self.q
    local drained, drained_rest = self:drained(s, now)
    local width, width_rest = self:width(cost)
    local after, after_rest = plus(drained, drained_rest, width, width_rest, q)
    local over, over_rest = minus(after - now, after_rest, self.tau, self.tau_rest, q)
    if over > 0 or (over == 0 and over_rest > 0) then
        return nil, up(over, over_rest), drained, drained_rest
    end
    if s and (s[4] > 0 or s[5] > 0 or #s > 7 or less(drained, drained_rest, s[6], s[7])) then
        return self:moved(s, now, now, after, after_rest)
    end
    local newest = (s and s[3] > now) and s[3] or now
    return {after, after_rest, newest, 0, 0, after, after_rest}
end

-- How many of `times` calls are admitted, the state after them, and the state before in short form; nil if the
-- state has no short form.
function Meter:admit_run(s, now, cost, times)
    local drained, drained_rest = self:drained(s, now)
    if s and (s[4] > 0 or s[5] > 0 or #s > 7 or less(drained, drained_rest, s[6], s[7])) then return nil end
    local room, room_rest = minus(self.tau, self.tau_rest, drained - now, drained_rest, self.q)
    local count = Exact.greatest(times, function(count)
        return count * cost <= self.burst and not less(room, room_rest, self:width(count * cost))
    end)
    local width, width_rest = self:width(count * cost)
    local after, after_rest = plus(drained, drained_rest, width, width_rest, self.q)
    local newest = (s and s[3] > now) and s[3] or now
    return count, {after, after_rest, newest, 0, 0, after, after_rest}, s and {s[1], s[2], s[3]}
end

function Meter:earliest(s, at, skew, cost)
    if not s then return at end
    local width, width_rest = self:width(cost)
    local after, after_rest = plus(s[1], s[2], width, width_rest, self.q)
    return math.max(at, up(minus(after, after_rest, self.tau, self.tau_rest, self.q)))
end

function Meter:peek(s, now, skew)
    local wait = self:earliest(s, now, 0, 1) - now
    local drained, drained_rest = self:drained(s, now)
    return self:decision(wait == 0, now, drained, drained_rest, wait)
end

function Meter:forecast(s, now, skew, cost)
    local drained, drained_rest = self:drained(s, now)
    local room, room_rest = minus(self.tau, self.tau_rest, drained - now, drained_rest, self.q)
    local fits = 0
    if room >= 0 then fits = math.floor(self:fitting(room, room_rest) / cost) end
    return {self:earliest(s, now, 0, cost), fits, up(drained, drained_rest)}
end

function Meter:refund_last(s, now, skew, cost, receipt, before)
    if not s or type(receipt) ~= "table" or receipt[1] < 0 then return s end
    local after, tail, tail_rest = {unpack(s)}, s[1], s[2]
    local function back_to(a, a_rest)
        a, a_rest = later(now, 0, a, a_rest)
        if less(a, a_rest, tail, tail_rest) then tail, tail_rest = a, a_rest end
    end
    -- A charge from before a retraction ends where its receipt says at the latest.
    local ends, ends_rest = receipt[1], receipt[2]
    if less(tail, tail_rest, ends, ends_rest) then ends, ends_rest = tail, tail_rest end
    local width, width_rest = self:width(cost)
    back_to(minus(ends, ends_rest, width, width_rest, self.q))
    local count = #after
    while count > 7 and not less(after[count - 1], after[count], tail, tail_rest) do
        back_to(after[count - 3], after[count - 2])
        for index = count, count - 3, -1 do after[index] = nil end
        count = count - 4
    end
    after[1], after[2] = tail, tail_rest
    if before then after[3] = math.min(s[3], math.max(before, now)) end
    if receipt[1] == s[6] and receipt[2] == s[7] then
        -- This was the newest charge: all other receipts are lower by at least its width.
        local top, top_rest = minus(receipt[1], receipt[2], width, width_rest, self.q)
        after[6], after[7] = later(top, top_rest, plus(tail, tail_rest, s[4], s[5], self.q))
    end
    return after
end

function Meter:refund(s, now, skew, cost, receipt)
    if not s or type(receipt) ~= "table" then return s, self:peek(s, now), 0, false end
    local q = self.q
    local tail, tail_rest, newest, retracted, retracted_rest = s[1], s[2], s[3], s[4], s[5]
    local ends, ends_rest = minus(receipt[1], receipt[2], retracted, retracted_rest, q)
    local width, width_rest = self:width(cost)
    if ends == tail and ends_rest == tail_rest and less(now, 0, tail, tail_rest) then
        local after = {unpack(s)}
        tail, tail_rest = minus(tail, tail_rest, width, width_rest, q)
        tail, tail_rest = later(now, 0, tail, tail_rest)
        local count = #after
        while count > 7 and not less(after[count - 1], after[count], tail, tail_rest) do
            tail, tail_rest = later(now, 0, after[count - 3], after[count - 2])
            for index = count, count - 3, -1 do after[index] = nil end
            count = count - 4
        end
        after[1], after[2] = tail, tail_rest
        return self:settled(after, now)
    end
    -- There are later charges. The part of this one that had drained by the last of them may be used up.
    local from, from_rest = later(now, 0, newest, 0)
    local back, back_rest = minus(ends, ends_rest, from, from_rest, q)
    if less(width, width_rest, back, back_rest) then back, back_rest = width, width_rest end
    if less(0, 0, back, back_rest) and less(ends, ends_rest, tail, tail_rest) then
        tail, tail_rest = minus(tail, tail_rest, back, back_rest, q)
        retracted, retracted_rest = plus(retracted, retracted_rest, back, back_rest, q)
        return self:settled({tail, tail_rest, newest, retracted, retracted_rest, s[6], s[7]}, now)
    end
    if less(now, 0, ends, ends_rest) and less(ends, ends_rest, tail, tail_rest)
        and retracted == 0 and retracted_rest == 0 and #s - 7 < 4 * MAX_STRETCHES then
        from, from_rest = minus(ends, ends_rest, width, width_rest, q)
        return self:settled(self:with_stretch(s, {from, from_rest, ends, ends_rest}), now)
    end
    return s, self:peek(s, now), 0, false
end

function Meter:debit(s, now, skew, cost)
    local drained, drained_rest = self:drained(s, now)
    local width, width_rest = self:width(cost)
    local after, after_rest = plus(drained, drained_rest, width, width_rest, self.q)
    -- A debt beyond any clock is capped, so that a double still has room for the retraction.
    if after >= 2^52 then after, after_rest = 2^52, 0 end
    local moved = self:moved(s or COLD, now, now, after, after_rest)
    return self:settled(moved, now, {moved[6], moved[7]})
end

function Meter:charge(s, now, skew, due, cost)
    local q = self.q
    local before = s or COLD
    local width, width_rest = self:width(cost)
    -- A slot delayed by this meter alone is charged from its exact position, not from the whole microsecond
    -- at which it is taken: otherwise a long queue would drift by the rounding.
    local base, base_rest = plus(before[1], before[2], width, width_rest, q)
    base, base_rest = minus(base, base_rest, self.tau, self.tau_rest, q)
    if not (less(now, 0, base, base_rest) and due == up(base, base_rest)) then
        base, base_rest = due, 0
    end
    base, base_rest = later(before[1], before[2], base, base_rest)
    local drained, drained_rest = self:drained(s, now)
    if less(drained, drained_rest, base, base_rest) and #before - 7 < 4 * MAX_STRETCHES - 8 then
        -- Another limit delayed the slot: if the slot is given back, the skipped stretch is free again.
        before = {unpack(before)}
        for _, number in ipairs({drained, drained_rest, base, base_rest}) do
            before[#before + 1] = number
        end
    end
    base, base_rest = plus(base, base_rest, width, width_rest, q)
    return self:charged(self:moved(before, now, due, base, base_rest), now, due)
end

-- inside

-- T * cost
function Meter:width(cost)
    local whole, rest = Exact.part(cost, self.p_rest, self.q)
    return self.p * cost + whole, rest
end

-- How many T fit into a length that is not negative.
function Meter:fitting(whole, rest)
    local units = math.floor((whole + rest / self.q) / (self.p + self.p_rest / self.q))
    if units > Exact.LARGEST then return Exact.LARGEST end
    while less(whole, rest, self:width(units)) do units = units - 1 end
    local next_width, next_rest = self:width(units + 1)
    while not less(whole, rest, next_width, next_rest) do
        units = units + 1
        next_width, next_rest = self:width(units + 1)
    end
    return units
end

-- A length in units, rounded up.
function Meter:units(whole, rest)
    if whole < 0 then return -self:fitting(minus(0, 0, whole, rest, self.q)) end
    local units = self:fitting(whole, rest)
    local width, width_rest = self:width(units)
    if units < Exact.LARGEST and less(width, width_rest, whole, rest) then return units + 1 end
    return units
end

function Meter:drained(s, now)
    if s and s[1] >= now then return s[1], s[2] end
    return now, 0
end

-- The decision for a charge that led to this state.
function Meter:charged(moved, now, due)
    local after, after_rest = moved[1], moved[2]
    local current = self:units(after - due, after_rest)
    return moved,
        {1, self.burst, current, self.burst - current, up(after, after_rest), 0, false, {moved[6], moved[7]}},
        self:life(moved, now), true
end

-- The state with a charge that ends at `after`, and a unique receipt.
function Meter:moved(s, now, due, after, after_rest)
    local q = self.q
    local top, top_rest = s[6], s[7]
    if #s == 7 and not less(now, 0, top, top_rest) then
        return {after, after_rest, due, 0, 0, after, after_rest}
    end
    -- Every position up to the newest receipt may be used as a receipt: continue above it.
    local from, from_rest = later(s[1], s[2], now, 0)
    local above, above_rest = minus(top, top_rest, from, from_rest, q)
    local retracted, retracted_rest = later(s[4], s[5], above, above_rest)
    local receipt, receipt_rest = plus(after, after_rest, retracted, retracted_rest, q)
    local moved = {after, after_rest, math.max(due, s[3]), retracted, retracted_rest, receipt, receipt_rest}
    for index = 8, #s, 4 do
        if less(now, 0, s[index + 2], s[index + 3]) then
            for place = index, index + 3 do moved[#moved + 1] = s[place] end
        end
    end
    return moved
end

-- The state with one more stretch, in order and without duplicates.
function Meter:with_stretch(s, stretch)
    local after = {unpack(s, 1, 7)}
    local placed = false
    local function enter(a, b, c, d)
        for _, number in ipairs({a, b, c, d}) do after[#after + 1] = number end
    end
    for index = 8, #s, 4 do
        local a, b, c, d = unpack(s, index, index + 3)
        if not placed then
            local same = a == stretch[1] and b == stretch[2] and c == stretch[3] and d == stretch[4]
            local before = less(a, b, stretch[1], stretch[2])
                or (a == stretch[1] and b == stretch[2] and less(c, d, stretch[3], stretch[4]))
            if same or not before then
                placed = true
                if not same then enter(unpack(stretch)) end
            end
        end
        enter(a, b, c, d)
    end
    if not placed then enter(unpack(stretch)) end
    return after
end

-- Until the last receipt has passed, which is never before the tail: a receipt must not be presented to a cold
-- state, which knows no retraction.
function Meter:life(s, now)
    return math.max(0, up(s[6], s[7]) - now)
end

function Meter:settled(s, now, receipt)
    local wait = self:earliest(s, now, 0, 1) - now
    -- A refund never moves the tail into the past: units that have drained are not given back.
    local decision = self:decision(wait == 0, now, s[1], s[2], wait)
    decision[8] = receipt or false
    return s, decision, self:life(s, now), true
end

function Meter:decision(allowed, now, drained, drained_rest, wait)
    local current = self:units(drained - now, drained_rest)
    local full = up(drained, drained_rest)
    local remaining = math.max(0, self.burst - current)
    return {allowed and 1 or 0, self.burst, current, remaining, full, wait, false, false}
end
