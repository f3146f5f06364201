-- needs base exact
-- The twin of Counting in base.py: a limit that counts.

local Counting = setmetatable({}, Algorithm)
Counting.__index = Counting

-- An admission in short form: now and the units in use, from which Python computes the rest.
function Counting:check_window(s, now, skew, cost)
    local after, decision, life, persist = self:decide(s, now, skew, cost)
    if persist then decision = {now, decision[3]} end
    return after, decision, life, persist
end

function Counting:peek(s, now, skew)
    return self:decision(s, now, skew, 1)
end

function Counting:forecast(s, now, skew, cost)
    local seen = self:peek(s, now, skew)
    local fits = seen[1] == 1 and math.floor(seen[4] / cost) or 0
    return {self:earliest(s, now, skew, cost), fits, seen[5]}
end

function Counting:refund(s, now, skew, cost, receipt)
    if type(receipt) == "number" then
        local after = self:refund_many(s, now, skew, {{receipt, cost}})
        if after ~= s then return self:settled(after, now, skew) end
    end
    return s, self:peek(s, now, skew), 0, false
end

-- The twin of Shift.counts: the starts of periods, ascending, and the count of each after the move. `moved.most`
-- also takes the count of a period, and returns no more.
function Counting:shifted_counts(s, numbers, moved)
    local starts, counts = {}, {}
    local by = moved.by
    local function add(start, units)
        if units == 0 then return end
        if not counts[start] then starts[#starts + 1] = start end
        counts[start] = math.min((counts[start] or 0) + units, Exact.LARGEST)
    end
    -- The first instant from this one on at which a call may have been due.
    local function next_from(at)
        for index = 1, #moved.pauses, 2 do
            local left, following = moved.pauses[index], moved.pauses[index + 1]
            if left < at and at < following then return following end
        end
        return at
    end
    for place = 1, #s, numbers do
        local begun, count = s[place], s[place + 1]
        if count % 1 ~= 0 or count < 0 or count > Exact.LARGEST then damaged() end
        local _, ends = self:bounds(begun)
        local at, last = next_from(math.max(begun, moved.first)), math.min(ends - 1, moved.newest)
        local has_begun = begun <= moved.present
        if at > last or (has_begun and at + by < ends) then
            add(begun, count)
        elseif has_begun then
            add(begun, count - moved.most(at, count))
        end
        while at <= last do
            local start, over = self:bounds(at + by)
            if start ~= begun or not has_begun then add(start, by < 0 and count or moved.most(at, count)) end
            -- If a double cannot hold that instant exactly, the loop would never end.
            if over - by <= at then damaged() end
            at = next_from(over - by)
        end
    end
    table.sort(starts)
    return starts, counts
end

-- Itself, and the first departure that has moved, if a period counts more than its limit because of that.
function Counting:too_full(s, numbers, moved)
    local before = {}
    for place = 1, #s, numbers do before[s[place]] = s[place + 1] end
    local starts, counts = self:shifted_counts(s, numbers, moved)
    for _, start in ipairs(starts) do
        if counts[start] > math.max(self.limit, before[start] or 0) then return {{self, moved.first}} end
    end
    return {}
end

-- inside

function Counting:settled(s, now, skew, receipt)
    local decision = self:decision(s, now, skew, 1)
    decision[8] = receipt or false
    return s, decision, self:life(s, now, skew), true
end
