-- needs base
-- The twin of Counting in base.py: a limit that counts.

local Counting = setmetatable({}, Algorithm)
Counting.__index = Counting

-- The short form of an admission: now and the units in use, from which the rest follows.
function Counting:check_window(s, now, skew, cost)
    local after, decision, life, persist = self:decide(s, now, skew, cost)
    if persist then decision = {now, decision[3]} end
    return after, decision, life, persist
end

function Counting:peek(s, now, skew)
    return self:decision(s, now, skew, 1)
end

function Counting:forecast(s, now, skew, cost)
    local seen = self:peek(s, now, skew)
    local fits = seen[1] == 1 and math.floor(seen[4] / cost) or 0
    return {self:earliest(s, now, skew, cost), fits, seen[5]}
end

function Counting:refund(s, now, skew, cost, receipt)
    if type(receipt) == "number" then
        local after = self:refund_many(s, now, skew, {{receipt, cost}})
        if after ~= s then return self:settled(after, now, skew) end
    end
    return s, self:peek(s, now, skew), 0, false
end

-- inside

function Counting:settled(s, now, skew, receipt)
    local decision = self:decision(s, now, skew, 1)
    decision[8] = receipt or false
    return s, decision, self:lasts(s, now, skew), true
end

-- How long to keep a state after a refund or debit.
function Counting:lasts(s, now, skew)
    return self:life(s, now, skew)
end
