-- needs base exact counting rows
-- The twin of sliding_log.py: same names, same steps.
--
-- A state is {how many entries are old, base, entries}. Entries are one string: the time and the total of
-- each, as numbers of eight digits of seven bits, which any client and JSON can carry as text. So a search
-- decodes only a few of them, and a call only copies bytes. Totals are not reset when Python resets them: a
-- total in Python is a total here minus the base. A receipt is the instant of the charge.

local SlidingLog = setmetatable({}, Counting)
SlidingLog.__index = SlidingLog
SlidingLog.check = Counting.check_window
twins.sliding_log = SlidingLog
SlidingLog.COLD = {0, 0, ""}
-- Above this total, all totals are lowered by what has expired, so that they stay exact.
SlidingLog.MOST = 2^52

do
    local digits_of, number_at, floor = Rows.digits_of, Rows.number_at, math.floor
    local ENTRY, TIME, TOTAL = 16, -15, -7

    -- How many entries are not above `most` in this ascending field.
    local function up_to(entries, field, most)
        local low, high = 0, #entries / ENTRY
        while low < high do
            local middle = floor((low + high + 1) / 2)
            if number_at(entries, middle * ENTRY + field) <= most then low = middle else high = middle - 1 end
        end
        return low
    end

    function SlidingLog.time_at(s, entry)
        return number_at(s[3], entry * ENTRY + TIME)
    end

    -- The total up to and including an entry; the base before the first one.
    function SlidingLog.total_at(s, entry)
        if entry == 0 then return s[2] end
        return number_at(s[3], entry * ENTRY + TOTAL)
    end

    function SlidingLog.count(s)
        return #s[3] / ENTRY
    end

    function SlidingLog.until_time(s, time)
        return up_to(s[3], TIME, time)
    end

    function SlidingLog.until_total(s, total)
        return up_to(s[3], TOTAL, total)
    end

    -- The entries from `first` to `last`, unchanged.
    function SlidingLog.slice(s, first, last)
        return string.sub(s[3], (first - 1) * ENTRY + 1, last * ENTRY)
    end

    -- The entries from `first` on, with lower totals.
    function SlidingLog.lowered(s, first, by)
        local entries = SlidingLog.slice(s, first, SlidingLog.count(s))
        return (string.gsub(entries, "(........)(........)", function(time, total)
            return time .. digits_of(number_at(total, 1) - by)
        end))
    end

    function SlidingLog.entry(time, total)
        return digits_of(time) .. digits_of(total)
    end
end

-- spec: its name, limit, window, how many entries the recent part may have.
function SlidingLog.new(spec)
    return setmetatable({
        limit = Exact.whole("limit", spec[2], 1, 10000),
        max_cost = spec[2],
        window = Exact.whole("window", spec[3], 1, 2^51),
        most_recent = Exact.whole("recent", spec[4], 1, 1e12),
    }, SlidingLog)
end

function SlidingLog:decide(s, now, skew, cost)
    local log, limit = s or self.COLD, self.limit
    local gone, total, newest = self:standing(log, now)
    local used = total - gone + cost
    if used > limit or newest > now then return s, self:decision(s, now, skew, cost), 0, false end
    local ends = now + self.window
    return self:entered(log, now, gone, total + cost),
        {1, limit, used, limit - used, ends, 0, false, now}, self.window, true
end

function SlidingLog:charge(s, now, skew, due, cost)
    local log, limit = s or self.COLD, self.limit
    local gone, total = self:standing(log, due)
    local used = total - gone + cost
    local ends = due + self.window
    local after = self:entered(log, due, self:standing(log, now), total + cost)
    return after, {1, limit, used, limit - used, ends, 0, false, due}, ends - now, true
end

function SlidingLog:earliest(s, at, skew, cost)
    if not s or s[3] == "" then return at end
    local count = self.count(s)
    local first = math.max(at, self.time_at(s, count))
    -- The call fits when at most limit - cost units still count: find the last entry that has to expire.
    local must_go = self.total_at(s, count) + cost - self.limit
    if must_go <= s[2] then return first end
    return math.max(first, self.time_at(s, self.until_total(s, must_go - 1) + 1) + self.window)
end

function SlidingLog:since(s, at)
    return self.total_at(s, self.count(s)) - self.total_at(s, self.until_time(s, at - 1))
end

function SlidingLog:together(charged_at)
    return charged_at
end

function SlidingLog:refund_many(s, now, skew, charges)
    if not s or #charges == 0 then return s end
    local first = self.until_time(s, charges[1][1] - 1)
    local kept, before, gone, at = {self.slice(s, 1, first)}, self.total_at(s, first), 0, 1
    for entry = first + 1, self.count(s) do
        local time, total, units = self.time_at(s, entry), self.total_at(s, entry), 0
        while at <= #charges and charges[at][1] < time do at = at + 1 end
        if at <= #charges and charges[at][1] == time then units = math.min(total - before, charges[at][2]) end
        gone = gone + units
        if units < total - before then kept[#kept + 1] = self.entry(time, total - gone) end
        before = total
    end
    return gone > 0 and {0, s[2], table.concat(kept)} or s
end

function SlidingLog:debit(s, now, skew, cost)
    local log = s or self.COLD
    local gone, total, newest = self:standing(log, now)
    local at = math.max(now, newest)
    return self:settled(self:entered(log, at, gone, total + cost), now, skew, at)
end

-- inside

-- The total that has left the window, the total so far, and the newest instant.
function SlidingLog:standing(log, now)
    local count = self.count(log)
    if count == 0 then return log[2], log[2], 0 end
    local stale = self.until_time(log, now - self.window)
    return self.total_at(log, stale), self.total_at(log, count), self.time_at(log, count)
end

-- The log with one more entry, at or after its newest.
function SlidingLog:entered(log, at, gone, total)
    local old, base, count = log[1], log[2], self.count(log)
    if count > 0 and self.time_at(log, count) == at then
        return {old, base, self.slice(log, 1, count - 1) .. self.entry(at, total)}
    end
    if count - old < self.most_recent then return {old, base, log[3] .. self.entry(at, total)} end
    -- Make the recent part old, and drop expired entries: the base is their total.
    local stale = self.until_total(log, gone)
    if total > self.MOST then
        return {count - stale, 0, self.lowered(log, stale + 1, gone) .. self.entry(at, total - gone)}
    end
    return {count - stale, gone, self.slice(log, stale + 1, count) .. self.entry(at, total)}
end

function SlidingLog:decision(s, now, skew, cost)
    local limit = self.limit
    if not s then return {1, limit, 0, limit, now, 0, false, false} end
    local gone, total, newest = self:standing(s, now)
    local used = total - gone
    local wait = self:earliest(s, now, 0, cost) - now
    local full = now + wait
    if used > 0 then full = math.max(full, newest + self.window) end
    local remaining = newest > now and 0 or math.max(0, limit - used)
    return {wait == 0 and 1 or 0, limit, used, remaining, full, wait, false, false}
end
