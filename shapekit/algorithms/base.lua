-- needs exact
-- The twin of base.py: what every algorithm does alike.
--
-- Operations are called (state, now, skew, …); they return what their Python does, a decision as
-- {allowed, limit, current, remaining, reset_at, retry_after, binding, receipt, delay}, with 1 and 0
-- for the truth and false for None. A state is a table, never changed once it was returned; nil is cold.

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

-- For windows: of an admission now and the units in use, from which the rest follows.
function Algorithm:check_window(s, now, skew, cost)
    local after, decision, life, persist = self:decide(s, now, skew, cost)
    if persist then decision = {now, decision[3]} end
    return after, decision, life, persist
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

function Algorithm:commit(s, now, skew, cost, max_wait)
    local due = self:earliest(s, now, skew, cost)
    local wait = due - now
    local refused
    if max_wait then refused = wait > max_wait else refused = self:spent(s, now, skew, cost) end
    if wait > 0 and refused then
        local _, denied = self:decide(s, now, skew, cost)
        denied[6] = wait
        return s, denied, 0, false
    end
    local after, decision, life = self:charge(s, now, skew, due, cost)
    decision[9] = wait
    return after, decision, life, true
end

local function cost_of(value, most)
    return Exact.whole("cost", value, 1, most)
end
