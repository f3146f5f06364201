-- needs exact rows
-- The twin of gaps.py. Gaps are rows {start, start_rest, end, end_rest}.

local Gaps = {}

do

local plus, less, later = Exact.plus, Exact.less, Exact.later
local MOST, WIDTH = 65536, 4

local function gap_at(gaps, index)
    return unpack(Rows.row(gaps, WIDTH, index))
end

function Gaps.after(gaps, at)
    local passed = 0
    for index = 1, Rows.count(gaps, WIDTH) do
        local _, _, last, last_rest = gap_at(gaps, index)
        if less(at, 0, last, last_rest) then break end
        passed = index
    end
    return Rows.replaced(gaps, WIDTH, 1, passed, "")
end

function Gaps.room(gaps, soonest, soonest_rest, width, width_rest, q)
    for index = 1, Rows.count(gaps, WIDTH) do
        local start, start_rest, last, last_rest = gap_at(gaps, index)
        start, start_rest = later(start, start_rest, soonest, soonest_rest)
        local ends, ends_rest = plus(start, start_rest, width, width_rest, q)
        if not less(last, last_rest, ends, ends_rest) then return index, start, start_rest end
    end
    return nil
end

function Gaps.taken(gaps, index, ends, ends_rest)
    local _, _, last, last_rest = gap_at(gaps, index)
    local left = ""
    if less(ends, ends_rest, last, last_rest) then left = Rows.text(ends, ends_rest, last, last_rest) end
    return Rows.replaced(gaps, WIDTH, index, index, left)
end

function Gaps.given_back(gaps, start, start_rest, last, last_rest)
    local left = Rows.preceding(gaps, WIDTH, start, start_rest)
    local right = left
    if left > 0 then
        local first, first_rest, ends, ends_rest = gap_at(gaps, left)
        if ends == start and ends_rest == start_rest then
            left, start, start_rest = left - 1, first, first_rest
        end
    end
    if right < Rows.count(gaps, WIDTH) then
        local first, first_rest, ends, ends_rest = gap_at(gaps, right + 1)
        if first == last and first_rest == last_rest then
            right, last, last_rest = right + 1, ends, ends_rest
        end
    end
    local kept =
        Rows.replaced(gaps, WIDTH, left + 1, right, Rows.text(start, start_rest, last, last_rest))
    if Rows.count(kept, WIDTH) <= MOST then return kept end
    return Rows.replaced(kept, WIDTH, MOST / 2 + 1, MOST / 2 + 1, "")
end

function Gaps.retracted(gaps, start, start_rest)
    local count = Rows.count(gaps, WIDTH)
    if count > 0 then
        local first, first_rest, last, last_rest = gap_at(gaps, count)
        if last == start and last_rest == start_rest then
            return first, first_rest, Rows.replaced(gaps, WIDTH, count, count, "")
        end
    end
    return start, start_rest, gaps
end

function Gaps.check(book)
    Rows.check(book[1], WIDTH, MOST)
    if type(book[2]) ~= "table" or #book[2] > 0 then damaged() end
end

end
