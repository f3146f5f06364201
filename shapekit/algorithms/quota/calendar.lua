-- The twin of calendar.py: same names, same steps.

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

    -- The year and the month in which a day lies.
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

    -- The anchor day so many months after a month.
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
