-- needs exact
-- Rows of whole numbers in one string: each number has eight digits of seven bits, which any client and JSON
-- can carry as text. So a search decodes only a few of them, and a change only copies bytes.

local Rows = {}

do

local byte, char, floor, sub = string.byte, string.char, math.floor, string.sub
local DIGITS = 8

function Rows.digits_of(number)
    local high = floor(number / 2^28)
    local low = number - high * 2^28
    return char(
        floor(high / 2^21), floor(high / 2^14) % 128, floor(high / 2^7) % 128, high % 128,
        floor(low / 2^21), floor(low / 2^14) % 128, floor(low / 2^7) % 128, low % 128
    )
end

function Rows.number_at(text, at)
    local a, b, c, d, e, f, g, h = byte(text, at, at + 7)
    return (((a * 128 + b) * 128 + c) * 128 + d) * 2^28 + ((e * 128 + f) * 128 + g) * 128 + h
end

-- One row.
function Rows.text(...)
    local digits = {...}
    for index, number in ipairs(digits) do digits[index] = Rows.digits_of(number) end
    return table.concat(digits)
end

function Rows.count(text, width)
    return #text / (DIGITS * width)
end

function Rows.at(text, width, row, field)
    return Rows.number_at(text, ((row - 1) * width + field - 1) * DIGITS + 1)
end

function Rows.row(text, width, row)
    local numbers = {}
    for field = 1, width do numbers[field] = Rows.at(text, width, row, field) end
    return numbers
end

-- How many rows begin with less than this number or, if a rest is given, with less than the position.
function Rows.preceding(text, width, whole, rest)
    local low, high = 0, Rows.count(text, width)
    while low < high do
        local middle = floor((low + high + 1) / 2)
        local first = Rows.at(text, width, middle, 1)
        if first < whole or (rest and first == whole and Rows.at(text, width, middle, 2) < rest) then
            low = middle
        else
            high = middle - 1
        end
    end
    return low
end

-- The rows with those from `first` to `last` replaced by others.
function Rows.replaced(text, width, first, last, rows)
    return sub(text, 1, (first - 1) * width * DIGITS) .. rows .. sub(text, last * width * DIGITS + 1)
end

-- Raises if rows from a store are malformed or too many.
function Rows.check(text, width, most)
    local step = DIGITS * width
    if type(text) ~= "string" or #text % step ~= 0 or #text > most * step then damaged() end
end

end
