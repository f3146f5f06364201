-- needs exact rows queue/constraints
-- The twin of slots.py: same names, same steps. It works on the book of a line, {rows, other places, …}. A
-- row is {start, start_rest, count, due, the tail, its rest and the newest departure before it, how far time
-- was ahead}, the last two of these with 2^52 added. A place is {start, start_rest, end, end_rest, due, cost,
-- the tail, its rest and the newest departure before it, receipts}; it is kept as the text of such a list, so
-- that a call decodes only the places that it needs.

local Places = {}
Places.__index = Places

do

local plus, minus, less, up = Exact.plus, Exact.minus, Exact.less, Exact.up
local floor = math.floor
local MOST, ROW, PLACE = 65536, 9, 10
local FAR = 2^52

-- The slot and the lead are given as whole and rest.
function Places.new(constraints, slot, slot_rest, lead, lead_rest, q, paced)
    if not paced then slot, slot_rest = 0, 1 end
    return setmetatable({
        constraints = constraints,
        slot = slot,
        slot_rest = slot_rest,
        lead = lead,
        lead_rest = lead_rest,
        q = q,
        paced = paced,
        left = 8 * MOST,
    }, Places)
end

local function row_at(book, index)
    local row = Rows.row(book[1], ROW, index)
    row[8], row[9] = row[8] - FAR, row[9] - FAR
    return row
end

local function slots_in(rows)
    local slots = 0
    for index = 1, Rows.count(rows, ROW) do slots = slots + Rows.at(rows, ROW, index, 3) end
    return slots
end

local function text_of(row)
    return Rows.text(row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8] + FAR, row[9] + FAR)
end

local function changed(book, rows, singles)
    return {rows, singles, unpack(book, 3)}
end

local function without(list, index)
    local kept = {}
    for place, item in ipairs(list) do
        if place ~= index then kept[#kept + 1] = item end
    end
    return kept
end

-- Numbers, false and lists of them as text that keeps every digit.
local function written(value)
    if type(value) ~= "table" then return value and string.format("%.0f", value) or "false" end
    local parts = {}
    for index, inner in ipairs(value) do parts[index] = written(inner) end
    return "[" .. table.concat(parts, ",") .. "]"
end

-- Refuses all but whole numbers that a double holds exactly, false for None, and tables of them.
local function refuse_others(value)
    if type(value) == "table" then
        for _, inner in pairs(value) do refuse_others(inner) end
    elseif value and (type(value) ~= "number" or value % 1 ~= 0 or math.abs(value) > Exact.LARGEST) then
        damaged()
    end
end

-- Whether a place begins before another, or at the same position and ends before it.
local function precedes(one, other)
    for index = 1, 4 do
        if one[index] ~= other[index] then return one[index] < other[index] end
    end
    return false
end

-- The book with one more place; nil if there are too many. `number` is the latest of the line.
function Places:given_back(book, place, number)
    local aligned, civil = self:offsets(place)
    if not aligned then
        local singles, low, high = book[2], 0, #book[2]
        if high >= MOST then return nil end
        while low < high do
            local middle = floor((low + high + 1) / 2)
            if precedes(self:single(singles, middle), place) then low = middle else high = middle - 1 end
        end
        local kept = {}
        for index = 1, low do kept[index] = singles[index] end
        kept[low + 1] = written(place)
        for index = low + 1, #singles do kept[index + 1] = singles[index] end
        return changed(book, book[1], kept)
    end
    local rows, due, receipts = book[1], place[5], place[10]
    local count = Rows.count(rows, ROW)
    local left = Rows.preceding(rows, ROW, place[1], place[2])
    local right, before, after = left, nil, nil
    if left > 0 then before = row_at(book, left) end
    if left < count then after = row_at(book, left + 1) end
    local function is_alike(other)
        return other and self.constraints:are_alike(due, receipts, other[8], other[9])
    end
    local alike = is_alike(before) and before or is_alike(after) and after
    if alike then aligned, civil = alike[8], alike[9] end
    local row = {place[1], place[2], 1, due, place[7], place[8], place[9], aligned, civil}
    local joined = before and self:joined(before, row)
    if joined then left, row = left - 1, joined end
    joined = after and self:joined(row, after)
    if joined then right, row = right + 1, joined end
    local kept = Rows.replaced(rows, ROW, left + 1, right, text_of(row))
    if Rows.count(kept, ROW) > MOST then return nil end
    -- No line has more slots than numbers.
    if number > 4 * MOST and slots_in(kept) > 4 * MOST then return nil end
    return changed(book, kept, book[2])
end

-- The first place with at least this cost, and the book without it.
function Places:first(book, cost)
    local rows, singles, found, single = book[1], book[2], 0, nil
    while found < #singles and not single do
        found = found + 1
        single = self:single(singles, found)
        if single[6] < cost then single = nil end
    end
    if cost == 1 and rows ~= "" then
        local row = row_at(book, 1)
        if not single or less(row[1], row[2], single[1], single[2]) then
            local rest = row[3] > 1 and text_of(self:rest(row, 1)) or ""
            return self:stretch(row, 1), changed(book, Rows.replaced(rows, ROW, 1, 1, rest), singles)
        end
    end
    if not single then return nil end
    return single, changed(book, rows, without(singles, found))
end

-- Retracts the tail over the places that end at it: the book, the tail and the newest departure before them,
-- and the limits without their charges.
function Places:retracted(book, tail, tail_rest, newest, parts, at, shift, skew, now)
    local rows, singles = book[1], book[2]
    while true do
        local count, last = Rows.count(rows, ROW), #singles > 0 and self:single(singles, #singles)
        local row = count > 0 and row_at({rows}, count)
        local ends, ends_rest
        if row then ends, ends_rest = self:start_of(row, row[3]) end
        if row and ends == tail and ends_rest == tail_rest then
            rows = Rows.replaced(rows, ROW, count, count, "")
            tail, tail_rest, newest = row[5], row[6], row[7]
            parts = self:refunded(parts, row, row[3], shift, skew, now)
        elseif last and last[3] == tail and last[4] == tail_rest then
            singles = without(singles, #singles)
            tail, tail_rest, newest = last[7], last[8], last[9]
            parts = self.constraints:refund_last(parts, last[5], last[6], last[10], shift, skew, now, last[9])
        else
            return changed(book, rows, singles), tail, tail_rest, newest, parts
        end
    end
end

-- The book without places that have passed, whose charges are given back. If the last of these ends ahead of
-- `at`, it stays, merged with those that touch it, at no cost: the tail may still retract over it.
function Places:swept(book, parts, at, shift, skew, now)
    local rows, singles, passed, gone, is_new = book[1], book[2], {}, 0, false
    while gone < #singles do
        local place = self:single(singles, gone + 1)
        if place[5] >= at then break end
        gone = gone + 1
        parts = self.constraints:refund(parts, place[5], place[6], place[10], shift, skew, now, "left")
        is_new = is_new or place[6] ~= 0
        passed[gone] = place
    end
    while rows ~= "" do
        local row = row_at({rows}, 1)
        local count = self:passed(row, at)
        if count == 0 then break end
        parts = self:refunded(parts, row, count, shift, skew, now, "left")
        passed[#passed + 1] = self:stretch(row, count)
        local rest = count < row[3] and text_of(self:rest(row, count)) or ""
        rows = Rows.replaced(rows, ROW, 1, 1, rest)
        is_new = true
    end
    table.sort(passed, precedes)
    local last
    for _, place in ipairs(passed) do
        if last and last[3] == place[1] and last[4] == place[2] then
            for _, field in ipairs({1, 2, 7, 8, 9}) do place[field] = last[field] end
            is_new = true
        end
        last = less(at, 0, place[3], place[4]) and place or nil
        place[6] = 0
    end
    if is_new or gone > 1 or (gone == 1 and not last) then
        local kept = {last and written(last)}
        for index = gone + 1, #singles do kept[#kept + 1] = singles[index] end
        singles = kept
    end
    return changed(book, rows, singles), parts
end

-- Raises if places from a store are malformed or too many.
function Places:check(book)
    Rows.check(book[1], ROW, MOST)
    -- The places that have passed leave one more.
    if type(book[2]) ~= "table" or #book[2] > MOST + 1 then damaged() end
end

-- inside

function Places:single(singles, index)
    local is_text, place = pcall(cjson.decode, singles[index])
    if not is_text or type(place) ~= "table" or #place ~= PLACE then damaged() end
    check_numbers(place, PLACE - 1)
    if type(place[PLACE]) ~= "table" or #place[PLACE] ~= #self.constraints.algorithms then damaged() end
    refuse_others(place)
    return place
end

function Places:offsets(place)
    local last, last_rest = plus(place[1], place[2], self.slot, self.slot_rest, self.q)
    if place[6] ~= 1 or place[3] ~= last or place[4] ~= last_rest then return nil end
    return self.constraints:offsets(place[5], place[10])
end

-- Where a slot of the row begins.
function Places:start_of(row, index)
    local q, carried = self.q, index * self.slot_rest
    local rest = carried % q
    return plus(row[1], row[2], index * self.slot + (carried - rest) / q, rest, q)
end

-- The departure of a slot of the row; past the last slot, the departure that the next would have.
function Places:due(row, index)
    -- If limits were changed, the first slot may leave before its position.
    if index == 0 or not self.paced then return row[4] end
    local start, start_rest = self:start_of(row, index)
    return math.max(row[4], up(minus(start, start_rest, self.lead, self.lead_rest, self.q)))
end

-- The two rows as one, if the other one continues the row.
function Places:joined(row, other)
    local count = row[3]
    local start, start_rest = self:start_of(row, count)
    if start ~= other[1] or start_rest ~= other[2] or self:due(row, count) ~= other[4]
        or start ~= other[5] or start_rest ~= other[6] or self:due(row, count - 1) ~= other[7]
        or row[8] ~= other[8] or row[9] ~= other[9] then
        return nil
    end
    return {row[1], row[2], count + other[3], unpack(row, 4)}
end

-- The first slots of a row as one place.
function Places:stretch(row, count)
    local last, last_rest = self:start_of(row, count)
    local due = self:due(row, count - 1)
    local receipts = self.constraints:receipts_at(due, row[8], row[9])
    return {row[1], row[2], last, last_rest, due, count, row[5], row[6], row[7], receipts}
end

-- The row without its first slots.
function Places:rest(row, count)
    local start, start_rest = self:start_of(row, count)
    return {start, start_rest, row[3] - count, self:due(row, count), start, start_rest,
        self:due(row, count - 1), row[8], row[9]}
end

-- How many slots of a row have passed.
function Places:passed(row, at)
    local count, q = row[3], self.q
    if row[4] >= at then return 0 end
    if not self.paced then return count end
    local last, last_rest = plus(at - 1, 0, self.lead, self.lead_rest, q)
    local whole, rest = minus(last, last_rest, row[1], row[2], q)
    local passed = floor((whole + rest / q) / (self.slot + self.slot_rest / q)) + 1
    passed = math.max(1, math.min(count, passed))
    -- The quotient of doubles may be off by one.
    if passed > 1 and self:due(row, passed - 1) >= at then passed = passed - 1 end
    if passed < count and self:due(row, passed) < at then passed = passed + 1 end
    return passed
end

function Places:refunded(parts, row, count, shift, skew, now, call)
    -- A valid state has at most half as many slots, and each operation adds a few.
    self.left = self.left - count
    if count < 1 or self.left < 0 then damaged() end
    local dues = {}
    for index = 1, count do dues[index] = self:due(row, index - 1) end
    return self.constraints:refund_many(parts, dues, row[8], row[9], shift, skew, now, call)
end

end

-- Gaps are rows {start, start_rest, end, end_rest}.

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

-- Gone works on the book of a line, {what is free, other places, rows, floor, words, …}: each row is
-- {first, last, due}, each word {generation, number, what followed, cost, nonce}.

local Gone = {}

do

local MOST_LEFT, MOST_ROWS, MOST_SAID = 256, 65536, 64
local ROW, WORD = 3, 5
local ONE_PROCESS = 2^32

function Gone.is_gone(book, number, due)
    if due <= book[4] then return true end
    local index = Rows.preceding(book[3], ROW, number + 1)
    return index > 0 and number <= Rows.at(book[3], ROW, index, 2)
end

function Gone.with_slot(book, number, due, at)
    local rows, floor = book[3], book[4]
    local index = Rows.preceding(rows, ROW, number + 1)
    local left, right, first, last = index, index, number, number
    if index > 0 and Rows.at(rows, ROW, index, 2) + 1 == number then
        left = index - 1
        first, due = Rows.at(rows, ROW, index, 1), math.max(due, Rows.at(rows, ROW, index, 3))
    end
    if index < Rows.count(rows, ROW) and Rows.at(rows, ROW, index + 1, 1) == number + 1 then
        right = index + 1
        last, due = Rows.at(rows, ROW, right, 2), math.max(due, Rows.at(rows, ROW, right, 3))
    end
    rows = Rows.replaced(rows, ROW, left + 1, right, Rows.text(first, last, due))
    if left == right and Rows.count(rows, ROW) % MOST_LEFT == 0 then
        rows, floor = Gone.forgotten(rows, floor, at)
    end
    return {book[1], book[2], rows, floor, unpack(book, 5)}
end

-- The index of a caller's settlement; nil if it is not known.
local function place_of(words, generation, number)
    for index = 1, Rows.count(words, WORD) do
        if Rows.at(words, WORD, index, 1) == generation and Rows.at(words, WORD, index, 2) == number then
            return index
        end
    end
    return nil
end

function Gone.with_word(book, generation, number, follows, cost, nonce)
    local words = book[5]
    local index = place_of(words, generation, number)
    if not index and Rows.count(words, WORD) >= MOST_SAID then index = 1 end
    if index then words = Rows.replaced(words, WORD, index, index, "") end
    words = words .. Rows.text(generation, number, follows, cost, nonce)
    return {book[1], book[2], book[3], book[4], words, unpack(book, 6)}
end

-- How many of the remembered settlements came after this number.
function Gone.settled_since(book, generation, number)
    local words, count = book[5], 0
    for index = 1, Rows.count(words, WORD) do
        if Rows.at(words, WORD, index, 1) == generation and Rows.at(words, WORD, index, 3) > number then
            count = count + 1
        end
    end
    return count
end

function Gone.last_word(book, generation, number, nonce)
    local index = place_of(book[5], generation, number)
    if not index then return nil end
    local since = Rows.at(book[5], WORD, index, 5) - nonce
    if since > 0 and since < ONE_PROCESS then return nil end
    return Rows.at(book[5], WORD, index, 3), Rows.at(book[5], WORD, index, 4)
end

function Gone.check(book)
    Rows.check(book[3], ROW, MOST_ROWS)
    if type(book[4]) ~= "number" then damaged() end
    Rows.check(book[5], WORD, MOST_SAID)
end

-- inside

function Gone.forgotten(rows, floor, at)
    local count, departures, all, kept = Rows.count(rows, ROW), {}, {}, MOST_LEFT / 2
    for index = 1, count do
        all[index] = Rows.at(rows, ROW, index, 3)
        if all[index] < at then departures[#departures + 1] = all[index] end
    end
    if #departures < kept then
        if count < MOST_ROWS then return rows, floor end
        -- No slots that have left are there to forget: the slots that leave next can no longer be given back.
        departures, kept = {}, MOST_ROWS / 2
        for index = 1, count do departures[index] = all[index] end
    end
    table.sort(departures)
    floor = math.max(floor, departures[#departures - kept + 1])
    local left = {}
    for index = 1, count do
        if all[index] > floor then left[#left + 1] = Rows.text(unpack(Rows.row(rows, ROW, index))) end
    end
    return table.concat(left), floor
end

end
