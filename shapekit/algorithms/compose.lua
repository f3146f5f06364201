-- needs base
-- The twin of compose.py. A state holds the states of the parts, false for a cold one; a receipt holds the
-- receipts of the parts.

local Composite = setmetatable({}, Algorithm)
Composite.__index = Composite

local NEVER = 2^53

function Composite.new(class, names, specs)
    local self = setmetatable({names = {}, parts = {}}, class)
    for name in string.gmatch(names, "%S+") do self.names[#self.names + 1] = name end
    for index, spec in ipairs(specs) do
        self.parts[index] = twin(spec)
        self.aligned = self.aligned or self.parts[index].aligned
    end
    Exact.whole("names", #self.names, #self.parts, #self.parts)
    return self
end

function Composite:freeze(s)
    local frozen = {}
    for index, part in ipairs(self.parts) do frozen[index] = s[index] and part:freeze(s[index]) end
    return frozen
end

function Composite:thaw(frozen)
    local s = {}
    for index, part in ipairs(self.parts) do s[index] = frozen[index] and part:thaw(frozen[index]) end
    return s
end

-- The state of a part; nil if it is cold.
local function of(s, index)
    return s and s[index] or nil
end

-- The index of the first item with the least weight.
local function least_of(seen, weight)
    local least, found
    for index, decision in ipairs(seen) do
        local weighs = weight(decision)
        if not least or weighs < least then least, found = weighs, index end
    end
    return found
end

-- The decision of a part as the decision of the whole.
function Composite:named(index, decision, receipt)
    local binding = self.names[index]
    if decision[7] then binding = binding .. "." .. decision[7] end
    return {decision[1], decision[2], decision[3], decision[4], decision[5], decision[6], binding, receipt}
end

function Composite:shifted(s, moved, skew)
    local after = {}
    for index, part in ipairs(self.parts) do
        after[index] = s[index] and part:shifted(s[index], self:own_shift(part, moved, skew), skew)
    end
    return after
end

function Composite:crowded(s, moved, skew)
    local found = {}
    for index, part in ipairs(self.parts) do
        for _, one in ipairs(s[index] and part:crowded(s[index], self:own_shift(part, moved, skew), skew) or {}) do
            found[#found + 1] = one
        end
    end
    return found
end

-- How calls move on the timeline of a part: beside a fixed window, periods go by civil time all the same.
function Composite:own_shift(part, moved, skew)
    return self.aligned and not part.aligned and Algorithm.shift_later(moved, skew) or moved
end

function Composite:resumed(s, newest)
    local after = {}
    for index, part in ipairs(self.parts) do after[index] = s[index] and part:resumed(s[index], newest) end
    return after
end

function Composite:refund_last(s, now, skew, cost, receipts, before)
    if not s or type(receipts) ~= "table" then return (self:refund(s, now, skew, cost, receipts)) end
    local after = {}
    for index, part in ipairs(self.parts) do
        after[index] = s[index]
        if receipts[index] then
            after[index] = part:refund_last(s[index] or nil, now, skew, cost, receipts[index], before) or false
        end
    end
    return after
end

function Composite:refund(s, now, skew, cost, receipts)
    local outcomes = {}
    for index, part in ipairs(self.parts) do
        local receipt = receipts and receipts[index]
        outcomes[index] = receipt and {part:refund(of(s, index), now, skew, cost, receipt)}
    end
    return self:settled(s, now, skew, outcomes)
end

function Composite:debit(s, now, skew, cost, receipts)
    local outcomes = {}
    local payers = self:payers()
    for index, part in ipairs(self.parts) do
        local receipt, pays = false, payers[index]
        if receipts then receipt, pays = receipts[index], receipts[index] end
        outcomes[index] = pays and {part:debit(of(s, index), now, skew, cost, receipt)}
    end
    return self:settled(s, now, skew, outcomes)
end

function Composite:peek(s, now, skew)
    local seen = {}
    for index, part in ipairs(self.parts) do seen[index] = part:peek(of(s, index), now, skew) end
    local wait = self:earliest(s, now, skew, 1) - now
    local binding = least_of(seen, wait == 0 and self.admitting or self.denying)
    local told = self:named(binding, seen[binding], false)
    told[1], told[6] = wait == 0 and 1 or 0, wait
    return told
end

function Composite:forecast(s, now, skew, cost)
    local fits, full_at = {}, 0
    for index, part in ipairs(self.parts) do
        fits[index] = 0
        if cost <= part.max_cost then fits[index] = part:forecast(of(s, index), now, skew, cost)[2] end
        full_at = math.max(full_at, part:forecast(of(s, index), now, skew, 1)[3])
    end
    return {self:earliest(s, now, skew, cost), self:fitting(fits), full_at}
end

function Composite:life(s, now, skew)
    local longest = 0
    for index, part in ipairs(self.parts) do
        if s[index] then longest = math.max(longest, part:life(s[index], now, skew)) end
    end
    return longest
end

function Composite:spent(s, at, skew, cost)
    -- The binding part decides: no call waits for the others.
    local found, binding
    for index, part in ipairs(self.parts) do
        if cost <= part.max_cost then
            local admits_at = part:earliest(of(s, index), at, skew, cost)
            if not found or self.binds(admits_at, found) then found, binding = admits_at, index end
        end
    end
    return self.parts[binding]:spent(of(s, binding), at, skew, cost)
end

function Composite:charged(s, pays, now, skew, due, cost)
    local after, paid, indices, receipts, life = {}, {}, {}, {}, 0
    for index, part in ipairs(self.parts) do
        after[index], receipts[index] = of(s, index) or false, false
        if pays[index] then
            local state, decision, lives = part:charge(of(s, index), now, skew, due, cost)
            after[index], receipts[index], life = state, decision[8], math.max(life, lives)
            paid[#paid + 1], indices[#indices + 1] = decision, index
        elseif after[index] then
            life = math.max(life, part:life(after[index], now, skew))
        end
    end
    local binding = least_of(paid, self.admitting)
    return after, self:named(indices[binding], paid[binding], receipts), life, true
end

function Composite:denied(s, now, skew, cost)
    local seen = {}
    for index, part in ipairs(self.parts) do
        if cost <= part.max_cost then
            local _, decision = part:decide(of(s, index), now, skew, cost)
            seen[index] = decision
        else
            -- This part can never admit the cost.
            local decision = {unpack(part:peek(of(s, index), now, skew), 1, 8)}
            decision[1], decision[6] = 0, NEVER
            seen[index] = decision
        end
    end
    local wait = self:earliest(s, now, skew, cost) - now
    local binding = least_of(seen, self.denying)
    local told = self:named(binding, seen[binding], false)
    told[6] = wait
    return s, told, 0, false
end

function Composite:settled(s, now, skew, outcomes)
    local after, receipts, changed, charged = {}, {}, false, false
    for index in ipairs(self.parts) do
        local outcome = outcomes[index]
        after[index], receipts[index] = of(s, index) or false, false
        if outcome then
            receipts[index] = outcome[2][8]
            charged = charged or receipts[index]
            if outcome[4] then after[index], changed = outcome[1], true end
        end
    end
    if not changed then return s, self:peek(s, now, skew), 0, false end
    local standing = self:peek(after, now, skew)
    standing[8] = charged and receipts
    return after, standing, self:life(after, now, skew), true
end

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

-- Admits what at least one part admits.
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

-- spec: its name, kind, the names separated by spaces, the specs of the parts.
twins.compose = {}

function twins.compose.new(spec)
    local class = ({all_of = AllOf, any_of = AnyOf, first_of = FirstOf})[spec[2]]
    local composite = Composite.new(class, spec[3], spec[4])
    local costs = {}
    for index, part in ipairs(composite.parts) do costs[index] = part.max_cost end
    composite.max_cost = (class == AllOf and math.min or math.max)(unpack(costs))
    return composite
end
