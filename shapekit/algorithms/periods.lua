-- needs exact
-- The twin of periods.py: same names, same steps, if no time zone is set.
--
-- A script does not know time zones: the boundaries of their periods are sent along, in ascending runs, each
-- boundary the end of one period and the start of the next. An instant outside of all runs raises
-- {"beyond", instant}: the caller then sends the boundaries around it, and asks again.

local Calendar = {}

do
    local floor = math.floor
    local MONTH_DAYS = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}
    local ERA_DAYS = 146097
    local EPOCH_SHIFT = 719468

    local function is_leap(year)
        return year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
    end

    local function days_in_month(year, month)
        if month == 2 and is_leap(year) then return 29 end
        return MONTH_DAYS[month]
    end

    local function days_from_civil(year, month, day)
        local shifted = month <= 2 and year - 1 or year
        local era = floor(shifted / 400)
        local year_of_era = shifted - era * 400
        local month_from_march = (month + 9) % 12
        local day_of_year = floor((153 * month_from_march + 2) / 5) + day - 1
        local day_of_era = year_of_era * 365 + floor(year_of_era / 4) - floor(year_of_era / 100) + day_of_year
        return era * ERA_DAYS + day_of_era - EPOCH_SHIFT
    end

    -- The year and the month of a day.
    local function month_of(days)
        local shifted = days + EPOCH_SHIFT
        local era = floor(shifted / ERA_DAYS)
        local day_of_era = shifted - era * ERA_DAYS
        local year_of_era = floor(
            (day_of_era - floor(day_of_era / 1460) + floor(day_of_era / 36524) - floor(day_of_era / 146096)) / 365
        )
        local day_of_year = day_of_era - (365 * year_of_era + floor(year_of_era / 4) - floor(year_of_era / 100))
        local month = (floor((5 * day_of_year + 2) / 153) + 2) % 12 + 1
        return year_of_era + era * 400 + (month <= 2 and 1 or 0), month
    end

    -- The anchor day a number of months after a month.
    local function anchor(year, month, months, anchor_day)
        local index = year * 12 + month - 1 + months
        year, month = floor(index / 12), index % 12 + 1
        return days_from_civil(year, month, math.min(anchor_day, days_in_month(year, month)))
    end

    function Calendar.weekday(days)
        return (days + 3) % 7
    end

    function Calendar.month_span(days, anchor_day)
        local year, month = month_of(days)
        local start = anchor(year, month, 0, anchor_day)
        if start > days then return anchor(year, month, -1, anchor_day), start end
        return start, anchor(year, month, 1, anchor_day)
    end
end

local Periods = {}
Periods.__index = Periods
Periods.MINUTE_US = 60000000
Periods.DAY_US = 86400000000
Periods.FURTHEST = 2^53
-- If boundaries are sent along, a few periods beyond the instant have to be exact as well.
Periods.FURTHEST_LISTED = 2^53 - 2^44

-- spec: its name, cadence, span, offset in minutes, start of the week, anchor day; for a time zone its name,
-- "listed", runs.
function Periods.new(spec)
    local cadence = spec[2]
    local self = setmetatable({cadence = cadence, start = 0, ends = 0}, Periods)
    if cadence == "listed" then
        self.runs = self:checked(spec[3])
        self.FURTHEST = self.FURTHEST_LISTED
        return self
    end
    if cadence ~= "fixed" and cadence ~= "day" and cadence ~= "week" and cadence ~= "month" then
        error("shapekit: no periods by " .. tostring(cadence), 0)
    end
    self.shift = Exact.whole("offset_minutes", spec[4], -840, 840) * self.MINUTE_US
    if cadence == "fixed" then self.span = Exact.whole("span", spec[3], 1, 2^51) end
    self.week_start = Exact.whole("week_start", spec[5], 0, 6)
    self.anchor_day = Exact.whole("anchor_day", spec[6], 1, 31)
    return self
end

function Periods:bounds(civil)
    if self.start <= civil and civil < self.ends then return self.start, self.ends end
    -- Arguments were checked before: an instant that is too far, or not a number, comes from a damaged state.
    if not (math.abs(civil) <= self.FURTHEST) then damaged() end
    self.start, self.ends = self[self.cadence](self, civil)
    return self.start, self.ends
end

-- inside

function Periods:fixed(civil)
    -- The remainders are added, not the instant and the shift: their sum might exceed 2^53.
    local start = civil - (civil % self.span + self.shift % self.span) % self.span
    return start, start + self.span
end

function Periods:day(civil)
    local day = self:local_day(civil)
    return self:midnight(day), self:midnight(day + 1)
end

function Periods:week(civil)
    local day = self:local_day(civil)
    local first = day - (Calendar.weekday(day) - self.week_start) % 7
    return self:midnight(first), self:midnight(first + 7)
end

function Periods:month(civil)
    local first, after = Calendar.month_span(self:local_day(civil), self.anchor_day)
    return self:midnight(first), self:midnight(after)
end

function Periods:listed(civil)
    for _, run in ipairs(self.runs) do
        if run[1] <= civil and civil < run[#run] then
            local index = 2
            while run[index] <= civil do index = index + 1 end
            return run[index - 1], run[index]
        end
    end
    error({"beyond", civil}, 0)
end

function Periods:local_day(civil)
    return math.floor((civil + self.shift) / self.DAY_US)
end

function Periods:midnight(day)
    return day * self.DAY_US - self.shift
end

function Periods:checked(runs)
    for _, run in ipairs(runs) do
        local least = -2^53
        for _, boundary in ipairs(run) do
            least = Exact.whole("boundary", boundary, least, 2^53) + 1
        end
    end
    return runs
end
