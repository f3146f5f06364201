-- needs exact rows
-- The twin of gone.py: same names, same steps. It works on the book of a line, {what is free, other places,
-- rows, floor, words, mark}: of each row {first, last, due}, of each word {generation, number, what followed,
-- cost, nonce}.

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

function Gone.with_turn(book, number, due, at)
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
    if Rows.count(rows, ROW) % MOST_LEFT == 0 then rows, floor = Gone.forgotten(rows, floor, at) end
    return {book[1], book[2], rows, floor, book[5], book[6]}
end

-- Where the word of a caller stands; nil if it is not known.
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
    return {book[1], book[2], book[3], book[4], words, book[6]}
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
        -- Nothing else is left to forget: those who leave next cannot give back any more.
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
