-- needs base exact
-- The twin of fixed_window.py: same names, same steps.
--
-- A state is {start, count of each window that counts still}, ascending; empty is cold. A receipt is the
-- instant of the charge.

local FixedWindow = setmetatable({}, Algorithm)
FixedWindow.__index = FixedWindow
FixedWindow.check = Algorithm.check_window
twins.fixed_window = FixedWindow
FixedWindow.MAX_NUMBERS = 2 * 64

-- spec: "fixed_window", limit, window.
function FixedWindow.new(spec)
    return setmetatable({
        limit = Exact.whole("limit", spec[2], 1, 1e12),
        max_cost = spec[2],
        window = Exact.whole("window", spec[3], 1, 2^51),
    }, FixedWindow)
end

function FixedWindow:decide(s, now, skew, cost)
    local limit, start = self.limit, now - now % self.window
    local count, after = cost, {}
    if s and #s > 0 then
        local newest = s[#s - 1]
        if newest == start then
            count = count + s[#s]
            after = {unpack(s, 1, #s - 2)}
        end
        if newest > start or count > limit then return s, self:decision(s, now, cost), 0, false end
    end
    after[#after + 1] = start
    after[#after + 1] = count
    local ends = start + self.window
    return after, {1, limit, count, limit - count, ends, 0, false, now, 0}, ends - now, true
end

function FixedWindow:charge(s, now, skew, due, cost)
    local limit, start = self.limit, due - due % self.window
    local after, used = self:booked(s, now, start, cost)
    local ends = start + self.window
    return after, {1, limit, used, limit - used, ends, 0, false, due, 0}, ends - now, true
end

function FixedWindow:earliest(s, at, skew, cost)
    if not s or #s == 0 then return at end
    local start, count = s[#s - 1], s[#s]
    if at >= start + self.window then return at end
    if count + cost <= self.limit then return math.max(at, start) end
    return start + self.window
end

function FixedWindow:peek(s, now, skew)
    return self:decision(s, now, 1)
end

function FixedWindow:forecast(s, now, skew, cost)
    local seen = self:peek(s, now)
    local fits = seen[1] == 1 and math.floor(seen[4] / cost) or 0
    return {self:earliest(s, now, 0, cost), fits, seen[5]}
end

function FixedWindow:refund(s, now, skew, cost, receipt)
    if s and type(receipt) == "number" then
        local start = receipt - receipt % self.window
        for place = 1, #s, 2 do
            if s[place] == start and start > now - self.window then
                return self:settled(self:booked(s, now, start, -cost), now)
            end
        end
    end
    return s, self:peek(s, now), 0, false
end

function FixedWindow:debit(s, now, skew, cost)
    local start = now - now % self.window
    if s and #s > 0 then start = math.max(start, s[#s - 1]) end
    return self:settled(self:booked(s, now, start, cost), now, math.max(now, start))
end

-- inside

-- The state without the windows that are over and those that count nothing, with `cost` more in the
-- window from `start` on, which is there or newer than all; and what that one counts then.
function FixedWindow:booked(s, now, start, cost)
    local after, count, placed = {}, cost, false
    local function enter(begun, counted)
        if counted > 0 then
            after[#after + 1] = begun
            after[#after + 1] = counted
        end
    end
    for place = 1, s and #s or 0, 2 do
        local begun, counted = s[place], s[place + 1]
        if begun > now - self.window then
            if begun == start then
                count = counted + cost
                counted, placed = count, true
            end
            enter(begun, counted)
        end
    end
    if not placed then enter(start, cost) end
    if #after > self.MAX_NUMBERS then after = {unpack(after, #after - self.MAX_NUMBERS + 1)} end
    return after, count
end

function FixedWindow:settled(s, now, receipt)
    local decision = self:decision(s, now, 1)
    decision[8] = receipt or false
    local life = #s > 0 and s[#s - 1] + self.window - now or 0
    return s, decision, math.max(0, life), true
end

function FixedWindow:decision(s, now, cost)
    local limit, wait = self.limit, self:earliest(s, now, 0, cost) - now
    local allowed = wait == 0 and 1 or 0
    if not s or #s == 0 or now >= s[#s - 1] + self.window then
        return {allowed, limit, 0, limit, now, wait, false, false, 0}
    end
    local start, count = s[#s - 1], s[#s]
    local ends = start + self.window
    if now < start then return {0, limit, count, 0, ends, wait, false, false, 0} end
    return {allowed, limit, count, math.max(0, limit - count), ends, wait, false, false, 0}
end
