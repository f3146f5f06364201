-- needs exact places
-- The twin of gaps.py. A stretch is {start, start_rest, end, end_rest}; the instant up to which everything
-- has passed is a whole one, `at`.

local Gaps = {}
Gaps.__index = Gaps

do

local plus, minus, less, later = Exact.plus, Exact.minus, Exact.less, Exact.later
local SLOTS = 48

-- The slot as whole and remainder.
function Gaps.new(slot, slot_rest, q)
    return setmetatable({slot = slot, slot_rest = slot_rest, q = q}, Gaps)
end

-- Calls `take(start, start_rest, end, end_rest)` for all that is free after `at`, until it returns true.
function Gaps:each(places, at, take)
    local slot, slot_rest, q = self.slot, self.slot_rest, self.q
    for _, place in ipairs(places) do
        if Places.is_gap(place) then
            local from, from_rest, standing = place[1], place[2], place[6]
            while standing > 0 do
                local to, to_rest = from, from_rest
                while standing % 2 == 0 do
                    standing = standing / 2
                    to, to_rest = plus(to, to_rest, slot, slot_rest, q)
                end
                if less(at, 0, to, to_rest) and take(from, from_rest, to, to_rest) then return end
                from, from_rest = to, to_rest
                while standing % 2 == 1 do
                    standing = (standing - 1) / 2
                    from, from_rest = plus(from, from_rest, slot, slot_rest, q)
                end
            end
            if less(at, 0, place[3], place[4]) and take(from, from_rest, place[3], place[4]) then return end
        end
    end
end

-- Where a newcomer stands, and the stretch; nil if there is no room.
function Gaps:room(places, at, width, width_rest)
    local q = self.q
    -- What begins in this very microsecond has not passed.
    local first, first_rest = at, 0
    if q > 1 then first, first_rest = at - 1, 1 end
    local start, start_rest, stretch
    self:each(places, at, function(from, from_rest, to, to_rest)
        local begin, begin_rest = later(from, from_rest, first, first_rest)
        local last, last_rest = plus(begin, begin_rest, width, width_rest, q)
        if less(to, to_rest, last, last_rest) then return false end
        start, start_rest, stretch = begin, begin_rest, {from, from_rest, to, to_rest}
        return true
    end)
    return start, start_rest, stretch
end

function Gaps:overlaps(places, at, start, start_rest, last, last_rest)
    local found = false
    self:each(places, at, function(from, from_rest, to, to_rest)
        found = less(from, from_rest, last, last_rest) and less(start, start_rest, to, to_rest)
        return found
    end)
    return found
end

local function fences_of(places)
    local fences = {}
    for _, place in ipairs(places) do
        if Places.is_fence(place) then fences[#fences + 1] = place end
    end
    return fences
end

local function joined(fences, gaps)
    for _, gap in ipairs(gaps) do fences[#fences + 1] = gap end
    return fences
end

function Gaps:given_back(places, at, start, start_rest, last, last_rest)
    local free, left, left_rest, right, right_rest = {}, start, start_rest, last, last_rest
    self:each(places, at, function(from, from_rest, to, to_rest)
        if to == start and to_rest == start_rest then
            left, left_rest = from, from_rest
        elseif from == last and from_rest == last_rest then
            right, right_rest = to, to_rest
        else
            free[#free + 1] = {from, from_rest, to, to_rest}
        end
    end)
    free[#free + 1] = {left, left_rest, right, right_rest}
    local gaps = self:packed(Places.sort(free))
    local remembered = false
    for _, gap in ipairs(gaps) do
        remembered = remembered
            or (not less(start, start_rest, gap[1], gap[2]) and less(start, start_rest, gap[3], gap[4]))
    end
    if not remembered then return nil end
    local fences = {}
    for _, fence in ipairs(fences_of(places)) do
        if less(fence[1], fence[2], left, left_rest) or less(right, right_rest, fence[3], fence[4]) then
            fences[#fences + 1] = fence
        end
    end
    return joined(fences, gaps)
end

function Gaps:filled(places, at, stretch, last, last_rest, since)
    local start, start_rest, right, right_rest = unpack(stretch)
    local free = {}
    self:each(places, at, function(from, from_rest, to, to_rest)
        if from ~= start or from_rest ~= start_rest or to ~= right or to_rest ~= right_rest then
            free[#free + 1] = {from, from_rest, to, to_rest}
        end
    end)
    if less(last, last_rest, right, right_rest) then
        free[#free + 1] = {last, last_rest, right, right_rest}
    end
    local fences =
        Places.fenced(fences_of(places), start, start_rest, last, last_rest, since, self.q)
    return joined(fences, self:packed(Places.sort(free)))
end

function Gaps:retracted(places, at, start, start_rest, tail, tail_rest, since)
    local free = {}
    self:each(places, at, function(...) free[#free + 1] = {...} end)
    local newest = free[#free]
    if newest and newest[3] == start and newest[4] == start_rest then
        start, start_rest = newest[1], newest[2]
        free[#free] = nil
    end
    local fences, last, last_rest = {}, tail, tail_rest
    for _, fence in ipairs(fences_of(places)) do
        if less(fence[1], fence[2], start, start_rest) then
            fences[#fences + 1] = fence
        else
            last, last_rest = later(last, last_rest, fence[3], fence[4])
        end
    end
    fences = Places.fenced(fences, start, start_rest, last, last_rest, since, self.q)
    return start, start_rest, joined(fences, self:packed(free))
end

-- inside

function Gaps:packed(free)
    local gaps = {}
    for _, stretch in ipairs(free) do
        local gap = gaps[#gaps]
        local high = gap and self:slots(gap[1], gap[2], stretch[1], stretch[2])
        local low = high and self:slots(gap[1], gap[2], gap[3], gap[4])
        if low then
            gap[3], gap[4] = stretch[3], stretch[4]
            gap[6] = gap[6] + math.ldexp(1, high) - math.ldexp(1, low)
        else
            gaps[#gaps + 1] = {stretch[1], stretch[2], stretch[3], stretch[4], 0, 0}
        end
    end
    while #gaps > Places.MOST do table.remove(gaps, Places.MOST / 2 + 1) end
    return gaps
end

-- How many slots lie between two positions; nil where they are no whole slots, or more than have a bit.
function Gaps:slots(from, from_rest, to, to_rest)
    local q, slot, slot_rest = self.q, self.slot, self.slot_rest
    local whole, rest = minus(to, to_rest, from, from_rest, q)
    local count = math.floor((whole + rest / q) / (slot + slot_rest / q) + 0.5)
    if count > SLOTS then return nil end
    local carried = count * slot_rest
    local width_rest = carried % q
    if width_rest == rest and count * slot + (carried - width_rest) / q == whole then return count end
    return nil
end

end
