-- needs base exact counting
-- The twin of sliding_window.py: same names, same steps.
--
-- A state is {the newest tick's number, the counts of the ticks, newest first, then the number and the count of
-- each older tick that still counts now}; empty is cold. A receipt is the instant of the charge.

local SlidingWindow = setmetatable({}, Counting)
SlidingWindow.__index = SlidingWindow
SlidingWindow.check = Counting.check_window
twins.sliding_window = SlidingWindow
SlidingWindow.MAX_AHEAD = 2^10
SlidingWindow.MOST_OWED = 1e15

-- spec: its name, limit, width of a tick, buckets, conservative.
function SlidingWindow.new(spec)
    return setmetatable({
        limit = Exact.whole("limit", spec[2], 1, 1e12),
        max_cost = spec[2],
        width = Exact.whole("width", spec[3], 1, 2^51),
        buckets = Exact.whole("buckets", spec[4], 1, 1000),
        conservative = spec[5],
    }, SlidingWindow)
end

function SlidingWindow:thaw(frozen)
    check_numbers(frozen, #frozen)
    local first = self.buckets + 3
    if #frozen >= first then
        if (#frozen - first) % 2 ~= 1 or #frozen - first > 2 * self.MAX_AHEAD then damaged() end
        local before = frozen[1] - self.buckets
        for place = first, #frozen, 2 do
            if frozen[place] >= before then damaged() end
            before = frozen[place]
        end
    end
    return frozen
end

function SlidingWindow:decide(s, now, skew, cost)
    local width, limit = self.width, self.limit
    local tick = math.floor(now / width)
    local ring = self:turned(s, tick, self.buckets + 1)
    if ring[1] > tick then return s, self:decision(s, now, skew, cost), 0, false end
    local used = self:used(ring, now - tick * width) + cost
    if used > limit then return s, self:decision(s, now, skew, cost), 0, false end
    local full = (tick + self.buckets + 1) * width
    return self:entered(ring, cost), {1, limit, used, limit - used, full, 0, false, now}, full - now, true
end

function SlidingWindow:charge(s, now, skew, due, cost)
    local width, limit = self.width, self.limit
    local tick = math.floor(due / width)
    local tick_now = math.floor(now / width)
    local ring
    if tick > tick_now and s and #s > 0 then
        ring = self:with_older(s, tick, tick_now)
    else
        ring = self:turned(s, tick, self.buckets + 1)
    end
    local used = self:used(ring, due - tick * width) + cost
    local full = (tick + self.buckets + 1) * width
    return self:entered(ring, cost), {1, limit, used, limit - used, full, 0, false, due}, full - now, true
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
            -- The oldest tick counts oldest * (width - elapsed) / width units, which must fit into room.
            local elapsed = width - Exact.part(width, room, oldest)
            if elapsed < width then return math.max(at, start + elapsed) end
        end
        if age > 0 then room = room + (ring[1 + age] or 0) end
    end
    return math.max(at, (ring[1] + buckets + 1) * width)
end

function SlidingWindow:refund_many(s, now, skew, charges)
    if not s or #s == 0 then return s end
    local ring, first = self:copied(s), self.buckets + 3
    local is_found, is_thinner = false, false
    for _, charge in ipairs(charges) do
        local tick = math.floor(charge[1] / self.width)
        local at = 2 + s[1] - tick
        if at >= first then
            local low, high = 0, math.floor((#s - first + 1) / 2)
            while low < high do
                local middle = math.floor((low + high) / 2)
                if s[first + 2 * middle] > tick then low = middle + 1 else high = middle end
            end
            at = first + 1 + 2 * low
            if s[at - 1] ~= tick then at = 0 end
        end
        if at >= 2 and (ring[at] or 0) > 0 then
            ring[at] = math.max(0, ring[at] - charge[2])
            is_found, is_thinner = true, is_thinner or (at > first and ring[at] == 0)
        end
    end
    if not is_found then return s end
    if is_thinner then
        local last, count = first - 1, #ring
        for place = first, count, 2 do
            local tick, counted = ring[place], ring[place + 1]
            ring[place], ring[place + 1] = nil, nil
            if counted > 0 then
                ring[last + 1], ring[last + 2] = tick, counted
                last = last + 2
            end
        end
    end
    -- A future tick whose slots were all given back is no longer the newest.
    if ring[2] == 0 and ring[1] * self.width > now then
        return self:retracted(ring, math.floor(now / self.width))
    end
    return ring
end

function SlidingWindow:refund_passed(s, now, skew, cost, receipt)
    local after, told, life, persist = self:refund(s, now, skew, cost, receipt)
    if not persist or (#after > 0 and after[1] >= s[1]) then return after, told, life, persist end
    return self:settled(self:turned(after, s[1], self.buckets + 1), now, skew)
end

function SlidingWindow:since(s, at)
    local first, tick, sum = self.buckets + 3, math.floor(at / self.width), 0
    for place = 2, math.min(#s, first - 1) do
        if s[1] - place + 2 >= tick then sum = sum + s[place] end
    end
    for place = first, #s, 2 do
        if s[place] >= tick then sum = sum + s[place + 1] end
    end
    return sum
end

function SlidingWindow:together(charged_at)
    return math.floor(charged_at / self.width)
end

function SlidingWindow:debit(s, now, skew, cost)
    local ring = self:turned(s, math.floor(now / self.width), self.buckets + 1)
    local owed = 0
    for place = 2, math.min(#ring, self.buckets + 2) do owed = owed + ring[place] end
    local after = self:entered(ring, owed < self.MOST_OWED and cost or 0)
    return self:settled(after, now, skew, math.max(now, ring[1] * self.width))
end

function SlidingWindow:life(s, now)
    return #s > 0 and math.max(0, (s[1] + self.buckets + 1) * self.width - now) or 0
end

-- inside

-- The ring moved on to `tick`, unless its newest is later, with at most `size` ticks.
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
    local after = self:copied(ring)
    after[2] = after[2] + cost
    return after
end

-- A copy; `unpack` cannot return as many elements.
function SlidingWindow:copied(ring)
    local copy = {}
    for place = 1, #ring do copy[place] = ring[place] end
    return copy
end

-- The ring with `tick` as its newest, followed by the older ticks that still count in the tick of `now`.
function SlidingWindow:with_older(ring, tick, now)
    local size, newest, oldest = self.buckets + 1, ring[1], now - self.buckets
    local ahead, turned = tick - newest, self:turned(ring, tick, self.buckets + 1)
    local after, older = {}, {}
    for place = 1, math.min(#turned, size + 1) do after[place] = turned[place] end
    for at = math.max(2, size + 2 - ahead), math.min(#ring, size + 1) do
        if ring[at] ~= 0 and newest - at + 2 >= oldest then
            older[#older + 1] = newest - at + 2
            older[#older + 1] = ring[at]
        end
    end
    local kept, fallen = #ring, #older
    while kept > size + 1 and ring[kept - 1] < oldest do kept = kept - 2 end
    for place = size + 2, kept do older[fallen + place - size - 1] = ring[place] end
    if #older == 0 then return after end
    for place = #after + 1, size + 1 do after[place] = 0 end
    local first, most = 1, 2 * self.MAX_AHEAD
    if #older > most then
        first = #older - most + 1
        local sum = 0
        for place = 2, first + 1, 2 do sum = sum + older[place] end
        older[first], older[first + 1] = older[1], sum
    end
    for place = first, #older do after[size + 2 + place - first] = older[place] end
    return after
end

-- The ring with its newest non-empty tick as the newest, or the tick of `now` if that is newer.
function SlidingWindow:retracted(ring, now)
    local first = self.buckets + 3
    local last = math.min(#ring, first - 1)
    local place = 2
    while place <= last and ring[place] == 0 do place = place + 1 end
    local newest = ring[1] - place + 2
    if place > last then
        if #ring < first then return {} end
        newest = ring[first]
    end
    newest = math.max(newest, now)
    local after = {newest}
    for at = 2 + ring[1] - newest, last do after[#after + 1] = ring[at] end
    if #ring >= first then
        for at = #after + 1, self.buckets + 2 do after[at] = 0 end
    end
    while first < #ring and newest - ring[first] <= self.buckets do
        after[2 + newest - ring[first]] = ring[first + 1]
        first = first + 2
    end
    local behind = #after
    for at = first, #ring do after[behind + at - first + 1] = ring[at] end
    return after
end

-- The sum of the ticks that count in full.
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

function SlidingWindow:decision(s, now, skew, cost)
    local limit, width, buckets = self.limit, self.width, self.buckets
    if not s or #s == 0 then return {1, limit, 0, limit, now, 0, false, false} end
    local ring = self:turned(s, math.floor(now / width), buckets + 1)
    local used = self:used(ring, math.max(0, now - ring[1] * width))
    local wait = self:earliest(s, now, 0, cost) - now
    local full, age = now + wait, 0
    while age <= buckets and (ring[2 + age] or 0) == 0 do age = age + 1 end
    if age <= buckets then full = math.max(full, (ring[1] - age + buckets + 1) * width) end
    local remaining = ring[1] * width > now and 0 or math.max(0, limit - used)
    return {wait == 0 and 1 or 0, limit, used, remaining, full, wait, false, false}
end
