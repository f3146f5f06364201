-- needs exact quota/calendar
-- The twin of periods.py: same names, same steps, where no time zone is set.
--
-- Of zones a script knows nothing: their boundaries come along, in ascending runs, each boundary the
-- end of one period and the start of the next. An instant that lies in no run raises {"beyond",
-- instant}: the caller is to send boundaries around it, and to ask again.

local Periods = {}
Periods.__index = Periods
Periods.MINUTE_US = 60000000
Periods.DAY_US = 86400000000
Periods.FURTHEST = 2^53
-- Some periods more have to be exact, where they come along.
Periods.FURTHEST_LISTED = 2^53 - 2^44

-- spec: its name, cadence, span, offset in minutes, start of the week, anchor day; of a zone its name,
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
    -- What is asked was looked at before: what is too far, or no number at all, comes from a state.
    if not (math.abs(civil) <= self.FURTHEST) then damaged() end
    self.start, self.ends = self[self.cadence](self, civil)
    return self.start, self.ends
end

-- inside

function Periods:fixed(civil)
    -- Remainders are added, not the instant and the shift: their sum might pass 2^53.
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
