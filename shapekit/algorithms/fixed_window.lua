-- needs base exact counting
-- The twin of fixed_window.py: same names, same steps.
--
-- A state is {start, count of each window that still counts}, ascending; empty is cold. A receipt is the
-- instant of the charge.

local FixedWindow = setmetatable({}, Counting)
FixedWindow.__index = FixedWindow
FixedWindow.check = Counting.check_window
twins.fixed_window = FixedWindow
FixedWindow.aligned = true
FixedWindow.MAX_NUMBERS = 2 * 2^10

-- spec: its name, limit, window.
function FixedWindow.new(spec)
    return setmetatable({
        limit = Exact.whole("limit", spec[2], 1, 1e12),
        max_cost = spec[2],
        window = Exact.whole("window", spec[3], 1, 2^51),
    }, FixedWindow)
end

function FixedWindow:thaw(frozen)
    if #frozen % 2 ~= 0 or #frozen > self.MAX_NUMBERS then damaged() end
    check_numbers(frozen, #frozen)
    for place = 3, #frozen, 2 do
        if frozen[place] <= frozen[place - 2] then damaged() end
    end
    return frozen
end

function FixedWindow:decide(s, now, skew, cost)
    local limit, start = self.limit, now - now % self.window
    local count, after = cost, {}
    if s and #s > 0 then
        local newest = s[#s - 1]
        if newest == start then
            count = count + s[#s]
            for place = 1, #s - 2 do after[place] = s[place] end
        end
        if newest > start or count > limit then return s, self:decision(s, now, skew, cost), 0, false end
    end
    after[#after + 1] = start
    after[#after + 1] = count
    local ends = start + self.window
    return after, {1, limit, count, limit - count, ends, 0, false, now}, ends - now, true
end

function FixedWindow:charge(s, now, skew, due, cost)
    local limit, start = self.limit, due - due % self.window
    local after, used = self:charged(s, now, start, cost)
    local ends = start + self.window
    return after, {1, limit, used, limit - used, ends, 0, false, due}, ends - now, true
end

function FixedWindow:earliest(s, at, skew, cost)
    if not s or #s == 0 then return at end
    local start, count = s[#s - 1], s[#s]
    if at >= start + self.window then return at end
    if count + cost <= self.limit then return math.max(at, start) end
    return start + self.window
end

function FixedWindow:refund_many(s, now, skew, charges)
    local kept, after, place, found = self:kept(s, now), {}, 1, false
    for index = 1, #charges + 1 do
        local charge = charges[index]
        local start = charge and charge[1] - charge[1] % self.window or math.huge
        while place < #kept and kept[place] < start do
            after[#after + 1] = kept[place]
            after[#after + 1] = kept[place + 1]
            place = place + 2
        end
        if kept[place] == start then
            found = true
            local left = kept[place + 1] - charge[2]
            if left > 0 then
                after[#after + 1] = start
                after[#after + 1] = left
            end
            place = place + 2
        end
    end
    if not found then return s end
    -- The present window stays, empty: if the clock goes back, no earlier window opens again.
    return #after > 0 and after or {now - now % self.window, 0}
end

function FixedWindow:refund_passed(s, now, skew, cost, receipt)
    local after, told, life, persist = self:refund(s, now, skew, cost, receipt)
    if not persist or after[#after - 1] >= s[#s - 1] then return after, told, life, persist end
    after[#after + 1], after[#after + 2] = s[#s - 1], 0
    return self:settled(after, now, skew)
end

function FixedWindow:shifted(s, moved)
    local starts, counts = self:shifted_counts(s, 2, moved)
    local after = {}
    for index = math.max(1, #starts - self.MAX_NUMBERS / 2 + 1), #starts do
        after[#after + 1] = starts[index]
        after[#after + 1] = counts[starts[index]]
    end
    return after
end

function FixedWindow:crowded(s, moved, skew)
    return self:too_full(s, 2, moved)
end

function FixedWindow:bounds(at)
    local start = at - at % self.window
    return start, start + self.window
end

function FixedWindow:resumed(s, newest)
    local after = {}
    for place = 1, #s, 2 do
        local start = math.min(s[place], newest - newest % self.window)
        if after[#after - 1] == start then
            after[#after] = after[#after] + s[place + 1]
        else
            after[#after + 1] = start
            after[#after + 1] = s[place + 1]
        end
    end
    return after
end

function FixedWindow:together(charged_at)
    return math.floor(charged_at / self.window)
end

function FixedWindow:debit(s, now, skew, cost)
    local start = now - now % self.window
    if s and #s > 0 then start = math.max(start, s[#s - 1]) end
    local after = self:charged(s, now, start, cost)
    return self:settled(after, now, skew, math.max(now, start))
end

function FixedWindow:life(s, now)
    return s and #s > 0 and math.max(0, s[#s - 1] + self.window - now) or 0
end

-- inside

-- A copy of the state without windows that have ended.
function FixedWindow:kept(s, now)
    local kept, first, over = {}, 1, now - self.window
    local length = s and #s or 0
    while first < length and s[first] <= over do first = first + 2 end
    for place = first, length do kept[place - first + 1] = s[place] end
    return kept
end

-- The state with `cost` more in the newest window or a newer one, and the count of that window.
function FixedWindow:charged(s, now, start, cost)
    local kept = self:kept(s, now)
    local length = #kept
    if length > 0 and kept[length - 1] == start then
        kept[length] = kept[length] + cost
        return kept, kept[length]
    end
    if length == self.MAX_NUMBERS then
        kept[length - 3], kept[length - 2] = kept[length - 1], kept[length - 2] + kept[length]
        length = length - 2
    end
    kept[length + 1], kept[length + 2] = start, cost
    return kept, cost
end

function FixedWindow:decision(s, now, skew, cost)
    local limit, wait = self.limit, self:earliest(s, now, 0, cost) - now
    local start, count = now, 0
    if s and #s > 0 and now < s[#s - 1] + self.window then start, count = s[#s - 1], s[#s] end
    local full = count > 0 and start + self.window or now + wait
    local remaining = start <= now and math.max(0, limit - count) or 0
    return {wait == 0 and 1 or 0, limit, count, remaining, full, wait, false, false}
end
