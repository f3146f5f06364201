-- Exact integers in doubles, which are exact up to 2^53.
--
-- A position on a grid of 1/q microseconds, with q <= 2^26, is kept as whole microseconds and a remainder from 0
-- to q - 1. The whole part is rounded down, so that pairs compare like numbers, also negative ones.

local floor = math.floor
local LARGEST = 2^53 - 1
local Exact = {}

-- Refuses anything but a whole number from `least` to `most`, including NaN and infinities.
function Exact.whole(name, value, least, most)
    if type(value) ~= "number" or value ~= floor(value) or value < least or value > most then
        error("shapekit: " .. name .. " " .. tostring(value) .. " is not a whole number from "
            .. string.format("%.0f to %.0f", least, most), 0)
    end
    return value
end

-- The error for a stored state that no program of this kind can have written.
local function damaged()
    error("DAMAGED it is no state of this kind", 0)
end

-- Refuses a stored list that does not begin with this many numbers.
local function check_numbers(list, count)
    for index = 1, count do
        if type(list[index]) ~= "number" then damaged() end
    end
end

function Exact.plus(a, a_rest, b, b_rest, q)
    local rest = a_rest + b_rest
    if rest >= q then return a + b + 1, rest - q end
    return a + b, rest
end

function Exact.minus(a, a_rest, b, b_rest, q)
    local rest = a_rest - b_rest
    if rest < 0 then return a - b - 1, rest + q end
    return a - b, rest
end

function Exact.less(a, a_rest, b, b_rest)
    return a < b or (a == b and a_rest < b_rest)
end

function Exact.later(a, a_rest, b, b_rest)
    if a < b or (a == b and a_rest < b_rest) then return b, b_rest end
    return a, a_rest
end

-- The first whole microsecond at or after the position.
function Exact.up(whole, rest)
    if rest > 0 then return whole + 1 end
    return whole
end

-- n * a / q as whole and remainder, for a <= q <= 2^51 and n <= 2^53. A product that is too long is divided
-- in steps, as on paper: rest < q and low < step, so rest * step + low * a < 2 * q * step <= 2^53.
function Exact.part(n, a, q)
    local product = n * a
    if product <= LARGEST then
        local rest = product % q
        return (product - rest) / q, rest
    end
    local step = floor(2^52 / q)
    local high = floor(n / step)
    local whole, rest = Exact.part(high, a, q)
    local low = rest * step + (n - high * step) * a
    rest = low % q
    return whole * step + (low - rest) / q, rest
end

-- The largest number up to `many` for which `fits` is true; if a number fits, every smaller one has to.
function Exact.greatest(many, fits)
    Exact.whole("calls", many, 1, LARGEST)
    if fits(many) then return many end
    local least, above = 0, many
    while above - least > 1 do
        local middle = floor((least + above) / 2)
        if fits(middle) then least = middle else above = middle end
    end
    return least
end

Exact.LARGEST = LARGEST
