-- needs exact
-- The twin of base.py: what all algorithms share.
--
-- Operations are called as (state, now, skew, …) and return what their Python returns, a decision as
-- {allowed, limit, current, remaining, reset_at, retry_after, binding, receipt}, with 1 and 0 for booleans
-- and false for None. A state is a table that is never changed once it was returned; nil is cold.

-- The classes by name. A spec begins with the name of its class.
local twins = {}

local Algorithm = {}
Algorithm.__index = Algorithm

local function twin(spec)
    local class = twins[spec[1]]
    if not class then error("shapekit: no twin of " .. tostring(spec[1]), 0) end
    return class.new(spec)
end

-- `decide` for Python, perhaps with an answer in short form that Python completes.
function Algorithm:check(s, now, skew, cost)
    return self:decide(s, now, skew, cost)
end

-- Makes several equal calls of an operation one by one; returns the list of their answers.
local function one_by_one(program, operation, times, s, ...)
    local answers, life, persist = {}, 0, false
    for place = 1, Exact.whole("calls", times, 1, 2^16) do
        local after, answer, lives, keeps = operation(program, s, ...)
        if keeps then s, life, persist = after, lives, true end
        answers[place] = answer
    end
    return s, answers, life, persist
end

-- A run of checks. A limit that can apply them at once answers with now and the state before.
function Algorithm:check_run(s, now, skew, cost, times)
    return one_by_one(self, self.check, times, s, now, skew, cost)
end

-- `refund` for a limit without slots in the future: a newer charge ahead means that time went back.
function Algorithm:refund_passed(s, now, skew, cost, receipt)
    return self:refund(s, now, skew, cost, receipt)
end

-- The state after `refund` of the last charge, since all later ones were given back.
function Algorithm:refund_last(s, now, skew, cost, receipt)
    return (self:refund(s, now, skew, cost, receipt))
end

-- At most how many units were charged for this instant or later.
function Algorithm:since(s, at)
    return math.huge
end

-- The state after a hold, or its end, has moved waiting calls on real time, which this limit counts by.
function Algorithm:shifted(s, moved, skew)
    return s
end

-- The limits of which a window of real time counts too many because of that, each with the first departure that
-- has moved on its timeline.
function Algorithm:crowded(s, moved, skew)
    return {}
end

-- The twin of Shift.later: how calls move, on a timeline that is ahead.
function Algorithm.shift_later(moved, ahead)
    local later = {by = moved.by, pauses = {}}
    for _, instant in ipairs({"present", "first", "newest"}) do later[instant] = moved[instant] + ahead end
    for place, instant in ipairs(moved.pauses) do later.pauses[place] = instant + ahead end
    function later.most(instant, count) return moved.most(instant - ahead, count) end
    return later
end

-- The state after a hold was ended early: no call of an aligned limit leaves after `newest`.
function Algorithm:resumed(s, newest)
    return s
end

-- A value that is equal for charges which can be given back together; nil if an instant alone is not enough.
function Algorithm:together(charged_at)
    return nil
end

-- charges: {instant, units}, ascending.
function Algorithm:refund_many(s, now, skew, charges)
    for index = #charges, 1, -1 do
        s = self:refund(s, now, skew, charges[index][2], charges[index][1])
    end
    return s
end

-- The stored form of a state; by default the state itself.
function Algorithm:freeze(s)
    return s
end

function Algorithm:thaw(frozen)
    return frozen
end

-- How long from `now` on a state differs from a cold one.
function Algorithm:life(s, now, skew)
    return math.max(0, self:forecast(s, now, skew, 1)[3] - now)
end

function Algorithm:spent(s, at, skew, cost)
    return false
end
