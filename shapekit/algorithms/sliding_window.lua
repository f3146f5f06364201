-- needs base exact
-- The twin of sliding_window.py: same names, same steps.
--
-- A state is {the newest tick's number, the counts of the ticks, newest first}; empty is cold. A receipt
-- is the instant of the charge.

local SlidingWindow = setmetatable({}, Algorithm)
SlidingWindow.__index = SlidingWindow
SlidingWindow.check = Algorithm.check_window
twins.sliding_window = SlidingWindow
SlidingWindow.MAX_AHEAD = 1000
SlidingWindow.MOST_OWED = 1e15

-- spec: "sliding_window", limit, width of a tick, buckets, conservative.
function SlidingWindow.new(spec)
    return setmetatable({
        limit = Exact.whole("limit", spec[2], 1, 1e12),
        max_cost = spec[2],
        width = Exact.whole("width", spec[3], 1, 2^51),
        buckets = Exact.whole("buckets", spec[4], 1, 1000),
        conservative = spec[5],
    }, SlidingWindow)
end

function SlidingWindow:decide(s, now, skew, cost)
    local width, limit = self.width, self.limit
    local tick = math.floor(now / width)
    local ring = self:turned(s, tick, self.buckets + 1)
    if ring[1] > tick then return s, self:decision(s, now, cost), 0, false end
    local used = self:used(ring, now - tick * width) + cost
    if used > limit then return s, self:decision(s, now, cost), 0, false end
    local full = (tick + self.buckets + 1) * width
    return self:entered(ring, cost), {1, limit, used, limit - used, full, 0, false, now, 0}, full - now, true
end

function SlidingWindow:charge(s, now, skew, due, cost)
    local width, limit = self.width, self.limit
    local tick = math.floor(due / width)
    local ahead = math.min(tick - math.floor(now / width), self.MAX_AHEAD)
    local ring = self:turned(s, tick, self.buckets + 1 + ahead)
    local used = self:used(ring, due - tick * width) + cost
    local full = (tick + self.buckets + 1) * width
    return self:entered(ring, cost), {1, limit, used, limit - used, full, 0, false, due, 0}, full - now, true
end

function SlidingWindow:earliest(s, at, skew, cost)
    if not s or #s == 0 then return at end
    local width, buckets = self.width, self.buckets
    local ring = self:turned(s, math.floor(at / width), buckets + 1)
    local room = self.limit - cost - self:recent(ring)
    for age = buckets, 0, -1 do
        -- The tick of this age is the oldest that counts.
        local start = (ring[1] + buckets - age) * width
        local oldest = ring[2 + age] or 0
        if room >= oldest then return math.max(at, start) end
        if room > 0 and not self.conservative then
            -- The oldest weighs oldest * (width - elapsed) / width, and that must fit into room.
            local elapsed = width - Exact.part(width, room, oldest)
            if elapsed < width then return math.max(at, start + elapsed) end
        end
        if age > 0 then room = room + (ring[1 + age] or 0) end
    end
    return math.max(at, (ring[1] + buckets + 1) * width)
end

function SlidingWindow:peek(s, now, skew)
    return self:decision(s, now, 1)
end

function SlidingWindow:forecast(s, now, skew, cost)
    local seen = self:peek(s, now)
    local fits = seen[1] == 1 and math.floor(seen[4] / cost) or 0
    return {self:earliest(s, now, 0, cost), fits, seen[5]}
end

function SlidingWindow:refund(s, now, skew, cost, receipt)
    if s and #s > 0 and type(receipt) == "number" then
        local age = s[1] - math.floor(receipt / self.width)
        if age >= 0 and (s[2 + age] or 0) > 0 then
            local ring = {unpack(s)}
            ring[2 + age] = math.max(0, ring[2 + age] - cost)
            -- A tick that held nothing but turns that were given back is not the newest any more.
            local empty = 0
            while empty < #ring - 1 and ring[2 + empty] == 0 and (ring[1] - empty) * self.width > now do
                empty = empty + 1
            end
            local after = {}
            if empty < #ring - 1 then after = {ring[1] - empty, unpack(ring, 2 + empty)} end
            return self:settled(after, now)
        end
    end
    return s, self:peek(s, now), 0, false
end

function SlidingWindow:debit(s, now, skew, cost)
    local ring = self:turned(s, math.floor(now / self.width), self.buckets + 1)
    local owed = 0
    for place = 2, #ring do owed = owed + ring[place] end
    local after = self:entered(ring, owed < self.MOST_OWED and cost or 0)
    return self:settled(after, now, math.max(now, ring[1] * self.width))
end

-- inside

-- The ring with `tick` as its newest, if that is not in its past, and at most `size` ticks.
function SlidingWindow:turned(s, tick, size)
    if not s or #s == 0 then return {tick, 0} end
    local ahead = tick - s[1]
    if ahead <= 0 then return s end
    local ring = {tick, 0}
    if ahead < size then
        for place = 3, ahead + 1 do ring[place] = 0 end
        for place = 2, math.min(#s, size + 1 - ahead) do ring[place + ahead] = s[place] end
    end
    return ring
end

-- The ring with `cost` more in its newest tick.
function SlidingWindow:entered(ring, cost)
    return {ring[1], ring[2] + cost, unpack(ring, 3)}
end

-- What the ticks count that count whole.
function SlidingWindow:recent(ring)
    local sum = 0
    for place = 2, math.min(#ring, self.buckets + 1) do sum = sum + ring[place] end
    return sum
end

-- The estimate at `elapsed` into the newest tick, rounded up to whole units.
function SlidingWindow:used(ring, elapsed)
    local oldest = ring[self.buckets + 2] or 0
    if self.conservative or oldest == 0 then return self:recent(ring) + oldest end
    return self:recent(ring) + Exact.up(Exact.part(oldest, self.width - elapsed, self.width))
end

function SlidingWindow:settled(s, now, receipt)
    local decision = self:decision(s, now, 1)
    decision[8] = receipt or false
    local life = #s > 0 and (s[1] + self.buckets + 1) * self.width - now or 0
    return s, decision, math.max(0, life), true
end

function SlidingWindow:decision(s, now, cost)
    local limit, width, buckets = self.limit, self.width, self.buckets
    if not s or #s == 0 then return {1, limit, 0, limit, now, 0, false, false, 0} end
    local ring = self:turned(s, math.floor(now / width), buckets + 1)
    local used = self:used(ring, math.max(0, now - ring[1] * width))
    local wait = self:earliest(s, now, 0, cost) - now
    local full, age = now + wait, 0
    while age <= buckets and (ring[2 + age] or 0) == 0 do age = age + 1 end
    if age <= buckets then full = math.max(full, (ring[1] - age + buckets + 1) * width) end
    local remaining = ring[1] * width > now and 0 or math.max(0, limit - used)
    return {wait == 0 and 1 or 0, limit, used, remaining, full, wait, false, false, 0}
end
