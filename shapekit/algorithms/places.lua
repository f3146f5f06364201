-- needs exact
-- The twin of places.py.
--
-- A place begins with start, start_rest, end, end_rest and the version that gave it back. A fence has no
-- more; a gap has the bits of who stands in it; a hole has its departure, its cost, the tail, its rest and
-- the newest departure before it, and the receipts.

local Places = {MOST = 64}

do

local less, minus = Exact.less, Exact.minus
local FENCE, GAP, HOLE = 5, 6, 11

-- Numbers, false where there is none, and tables of them.
local function refuse_text(value)
    local kind = type(value)
    if kind == "string" then damaged() end
    for _, inner in pairs(kind == "table" and value or {}) do refuse_text(inner) end
end

-- Refuses places that were read and that are none, or more than may be; of a hole there are so many receipts.
function Places.check(places, count)
    if #places > 256 then damaged() end
    for _, place in ipairs(places) do
        local size = #place
        check_numbers(place, size > GAP and HOLE - 1 or math.max(size, FENCE))
        if size > GAP and #place[HOLE] ~= count then damaged() end
        refuse_text(place[HOLE])
    end
end

function Places.taken(start, start_rest, last, last_rest, since)
    return {start, start_rest, last, last_rest, since}
end

function Places.is_fence(place)
    return #place == FENCE
end

function Places.is_gap(place)
    return #place == GAP
end

function Places.is_full(places)
    local free = 0
    for _, place in ipairs(places) do
        if #place ~= FENCE then free = free + 1 end
    end
    return free >= Places.MOST
end

-- Whether the place begins before the position, and whether it ends after it.
local function begins_before(place, position, rest)
    return less(place[1], place[2], position, rest)
end

local function ends_after(place, position, rest)
    return less(position, rest, place[3], place[4])
end

-- The order of places, and of stretches: by their start, their end and their version.
local function precedes(one, other)
    for index = 1, 5 do
        if one[index] ~= other[index] then return one[index] < other[index] end
    end
    return false
end

-- In order, equals as they come: nearly everything stands in its place already.
function Places.sort(list)
    for index = 2, #list do
        local item, place = list[index], index
        while place > 1 and precedes(item, list[place - 1]) do
            list[place] = list[place - 1]
            place = place - 1
        end
        list[place] = item
    end
    return list
end

function Places.with(places, place, q)
    local kept = {}
    local start, start_rest, last, last_rest, since = unpack(place)
    if #place == FENCE then
        for _, old in ipairs(places) do
            if begins_before(old, start, start_rest) then
                kept[#kept + 1] = old
            elseif ends_after(old, last, last_rest) then
                last, last_rest = old[3], old[4]
            end
        end
        place = Places.taken(start, start_rest, last, last_rest, since)
    else
        for _, old in ipairs(places) do
            if begins_before(old, start, start_rest) or ends_after(old, last, last_rest) then
                kept[#kept + 1] = old
            end
        end
    end
    kept[#kept + 1] = place
    return Places.bounded(kept, q)
end

-- Makes one of the two fences that are nearest to each other.
local function joined(fences, q)
    local near, least, least_rest
    for index = 1, #fences - 1 do
        local one, two = fences[index], fences[index + 1]
        local between, rest = minus(two[1], two[2], one[3], one[4], q)
        if not near or less(between, rest, least, least_rest) then
            near, least, least_rest = index, between, rest
        end
    end
    local one, two = fences[near], table.remove(fences, near + 1)
    local last, last_rest = Exact.later(one[3], one[4], two[3], two[4])
    fences[near] = Places.taken(one[1], one[2], last, last_rest, math.max(one[5], two[5]))
end

function Places.bounded(places, q)
    local fences, others = {}, {}
    for _, place in ipairs(places) do
        local list = #place == FENCE and fences or others
        list[#list + 1] = place
    end
    Places.sort(fences)
    while #fences > Places.MOST do joined(fences, q) end
    for _, place in ipairs(others) do fences[#fences + 1] = place end
    return Places.sort(fences)
end

function Places.fenced(fences, start, start_rest, last, last_rest, since, q)
    local kept, from, from_rest = {}, nil, nil
    for _, place in ipairs(fences) do
        if not from and place[3] == start and place[4] == start_rest and place[5] == since then
            from, from_rest = place[1], place[2]
        else
            kept[#kept + 1] = place
        end
    end
    kept[#kept + 1] = Places.taken(from or start, from_rest or start_rest, last, last_rest, since)
    return Places.bounded(kept, q)
end

end
