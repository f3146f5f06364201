-- needs exact
-- The twin of base.py: what every algorithm does alike.
--
-- Operations are called (state, now, skew, …); they return what their Python does, a decision as
-- {allowed, limit, current, remaining, reset_at, retry_after, binding, receipt}, with 1 and 0 for
-- the truth and false for None. A state is a table, never changed once it was returned; nil is cold.

-- The class of a spec by the name that comes first in it.
local twins = {}

local Algorithm = {}
Algorithm.__index = Algorithm

local function twin(spec)
    local class = twins[spec[1]]
    if not class then error("shapekit: no twin of " .. tostring(spec[1]), 0) end
    return class.new(spec)
end

-- What is asked from outside: as `decide`, in a form that may be shorter, for Python to complete.
function Algorithm:check(s, now, skew, cost)
    return self:decide(s, now, skew, cost)
end

-- Without all that was charged later than this, which was given back before.
function Algorithm:cut(s, now, charged_at)
    return s
end

-- What the instants of charges have in common that are given back alike; nil where an instant says too little.
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

-- How a state is kept. Most keep it as it is.
function Algorithm:freeze(s)
    return s
end

function Algorithm:thaw(frozen)
    return frozen
end

-- How long from `now` a state differs from a cold one.
function Algorithm:life(s, now, skew)
    return math.max(0, self:forecast(s, now, skew, 1)[3] - now)
end

function Algorithm:spent(s, at, skew, cost)
    return false
end

local function cost_of(value, most)
    return Exact.whole("cost", value, 1, most)
end
