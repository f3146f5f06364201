-- needs composite
-- The twin of compose.py.

local AllOf = setmetatable({}, Composite)
AllOf.__index = AllOf

function AllOf:decide(s, now, skew, cost)
    local after, receipts, life = {}, {}, 0
    local least, binding, bound
    for index, part in ipairs(self.parts) do
        local state, decision, lives, admitted = part:decide(s and s[index] or nil, now, skew, cost)
        if not admitted then return self:denied(s, now, skew, cost) end
        after[index], receipts[index] = state, decision[8]
        if not least or decision[4] < least then least, binding, bound = decision[4], index, decision end
        if lives > life then life = lives end
    end
    return after, self:named(binding, bound, receipts), life, true
end

function AllOf:charge(s, now, skew, due, cost)
    return self:charged(s, self:payers(), now, skew, due, cost)
end

function AllOf:earliest(s, at, skew, cost)
    while true do
        local later = at
        for index, part in ipairs(self.parts) do
            later = math.max(later, part:earliest(s and s[index] or nil, at, skew, cost))
        end
        if later == at then return at end
        at = later
    end
end

function AllOf:fitting(fits)
    return math.min(unpack(fits))
end

function AllOf:payers()
    local all = {}
    for index in ipairs(self.parts) do all[index] = true end
    return all
end

function AllOf.binds(admits_at, found)
    return admits_at > found
end

function AllOf.admitting(decision)
    return decision[4]
end

function AllOf.denying(decision)
    return -decision[6]
end

-- Admits what one part admits.
local Alternatives = setmetatable({}, Composite)
Alternatives.__index = Alternatives

function Alternatives:decide(s, now, skew, cost)
    local after, receipts, life = {}, {}, 0
    local most, binding, bound
    for index, part in ipairs(self.parts) do
        after[index], receipts[index] = s and s[index] or false, false
        if cost <= part.max_cost and (self.charges_all or not bound) then
            local state, decision, lives, admitted = part:decide(after[index] or nil, now, skew, cost)
            if admitted then
                after[index], receipts[index], life = state, decision[8], math.max(life, lives)
                if not most or decision[4] > most then most, binding, bound = decision[4], index, decision end
            end
        end
    end
    if not bound then return self:denied(s, now, skew, cost) end
    for index, part in ipairs(self.parts) do
        if not receipts[index] and after[index] then
            life = math.max(life, part:life(after[index], now, skew))
        end
    end
    return after, self:named(binding, bound, receipts), life, true
end

function Alternatives:charge(s, now, skew, due, cost)
    local pays, found = {}, false
    for index, part in ipairs(self.parts) do
        pays[index] = cost <= part.max_cost and (self.charges_all or not found)
            and part:earliest(s and s[index] or nil, due, skew, cost) == due
        found = found or pays[index]
    end
    return self:charged(s, pays, now, skew, due, cost)
end

function Alternatives:earliest(s, at, skew, cost)
    local first
    for index, part in ipairs(self.parts) do
        if cost <= part.max_cost then
            local admits_at = part:earliest(s and s[index] or nil, at, skew, cost)
            if not first or admits_at < first then first = admits_at end
        end
    end
    return first
end

function Alternatives.binds(admits_at, found)
    return admits_at < found
end

function Alternatives.denying(decision)
    return decision[6]
end

local AnyOf = setmetatable({charges_all = true}, Alternatives)
AnyOf.__index = AnyOf
AnyOf.payers = AllOf.payers

function AnyOf:fitting(fits)
    return math.max(unpack(fits))
end

function AnyOf.admitting(decision)
    return decision[1] == 1 and -decision[4] or 1
end

local FirstOf = setmetatable({charges_all = false}, Alternatives)
FirstOf.__index = FirstOf

function FirstOf:fitting(fits)
    local sum = 0
    for _, fit in ipairs(fits) do sum = sum + fit end
    return sum
end

function FirstOf:payers()
    return {true}
end

function FirstOf.admitting(decision)
    return 1 - decision[1]
end

-- spec: "compose", kind, the names with blanks between, the specs of the parts.
twins.compose = {}

function twins.compose.new(spec)
    local class = ({all_of = AllOf, any_of = AnyOf, first_of = FirstOf})[spec[2]]
    local composite = Composite.new(class, spec[3], spec[4])
    local costs = {}
    for index, part in ipairs(composite.parts) do costs[index] = part.max_cost end
    composite.max_cost = (class == AllOf and math.min or math.max)(unpack(costs))
    return composite
end
