-- needs base exact
-- The twin of constraints.py. States and receipts are lists in the order of the algorithms, false for None;
-- what Python passes as `ahead` are the arguments shift, skew and now.

local Constraints = {}
Constraints.__index = Constraints

-- specs: for each algorithm its spec, whether it is aligned, its kind, and whether it is civil.
function Constraints.new(specs)
    local self = setmetatable({algorithms = {}, aligned = {}, kinds = {}, civil = {}, cold = {}}, Constraints)
    for index, spec in ipairs(specs) do
        self.algorithms[index] = twin(spec[1])
        self.aligned[index], self.kinds[index], self.civil[index] = spec[2], spec[3], spec[4]
        self.cold[index] = false
    end
    return self
end

function Constraints:freeze(states)
    local frozen = {}
    for index, algorithm in ipairs(self.algorithms) do
        frozen[index] = states[index] and algorithm:freeze(states[index])
    end
    return frozen
end

function Constraints:thaw(frozen)
    local states = {}
    for index, algorithm in ipairs(self.algorithms) do
        states[index] = frozen[index] and algorithm:thaw(frozen[index])
    end
    return states
end

function Constraints:departure(states, at, cost, shift, skew)
    local due, told = at, false
    while true do
        local later = due
        for index, algorithm in ipairs(self.algorithms) do
            local before = states[index] or nil
            local real, ahead = self:timeline(index, shift, skew)
            if not told and algorithm:spent(before, later + real, ahead, cost) then
                local _, denial = algorithm:decide(before, later + real, ahead, cost)
                told = {unpack(denial)}
                told[5] = denial[5] - real
                told[7] = denial[7] or self.kinds[index]
            end
            later = algorithm:earliest(before, later + real, ahead, cost) - real
        end
        if later == due then return due, told end
        due = later
    end
end

function Constraints:charge(states, at, due, cost, shift, skew, now)
    local after, receipts, life = {}, {}, 0
    for index, algorithm in ipairs(self.algorithms) do
        local real, ahead = self:timeline(index, shift, skew)
        local state, decision, lives =
            algorithm:charge(states[index] or nil, now - shift + real, ahead, due + real, cost)
        after[index], receipts[index], life = state, decision[8], math.max(life, lives)
    end
    return after, receipts, life - (at + shift - now)
end

function Constraints:refund(states, due, cost, receipts, shift, skew, now)
    if cost == 0 or #receipts == 0 then return states end
    return self:each("refund", states, nil, due, cost, receipts, shift, skew, now)
end

-- `refund`, if all later charges were given back, and `newest` is the last departure that is left.
function Constraints:refund_last(states, due, cost, receipts, shift, skew, now, newest)
    if cost == 0 or #receipts == 0 then return states end
    Exact.whole("receipts", #receipts, #self.algorithms, #self.algorithms)
    local after = {}
    for index, algorithm in ipairs(self.algorithms) do
        local real, ahead = self:timeline(index, shift, skew)
        after[index] = states[index]
        if receipts[index] and not self:has_moved(index, due, receipts[index], shift) then
            -- By aligned time it may have shifted since.
            local left = not self.aligned[index] and newest or nil
            local before, receipt = states[index] or nil, receipts[index]
            after[index] = algorithm:refund_last(before, now - shift + real, ahead, cost, receipt, left) or false
        end
    end
    return after
end

-- Gives one unit back to each of these departures, which ascend.
function Constraints:refund_many(states, dues, aligned, civil, shift, skew, now)
    local after = {}
    for index, algorithm in ipairs(self.algorithms) do
        local real, ahead = self:timeline(index, shift, skew)
        local offset = self:offset(index, aligned, civil)
        local charges, known = {}, {}
        for _, due in ipairs(dues) do
            local charged_at = due + offset
            local place = algorithm:together(charged_at)
            if not place then damaged() end
            if not known[place] then
                known[place] = {charged_at, 0}
                charges[#charges + 1] = known[place]
            end
            known[place][2] = known[place][2] + 1
        end
        after[index] = states[index]
        if not self:has_moved(index, 0, offset, shift) then
            after[index] = algorithm:refund_many(states[index] or nil, now - shift + real, ahead, charges) or false
        end
    end
    return after
end

-- How far time was ahead when this departure was charged, for aligned limits and civil time; nil if a receipt
-- contains more than its instant.
function Constraints:offsets(due, receipts)
    local aligned, civil = 0, 0
    for index, algorithm in ipairs(self.algorithms) do
        local receipt = receipts[index]
        if type(receipt) ~= "number" or receipt < 0 or not algorithm:together(receipt) then return nil end
        if self.aligned[index] then
            aligned = receipt - due
        elseif self.civil[index] then
            civil = receipt - due
        end
    end
    if not self:are_alike(due, receipts, aligned, civil) then return nil end
    return aligned, civil
end

-- Whether these receipts are equivalent to those with such offsets.
function Constraints:are_alike(due, receipts, aligned, civil)
    for index, algorithm in ipairs(self.algorithms) do
        local charged_at = due + self:offset(index, aligned, civil)
        if algorithm:together(receipts[index]) ~= algorithm:together(charged_at) then return false end
    end
    return true
end

function Constraints:receipts_at(due, aligned, civil)
    local receipts = {}
    for index = 1, #self.algorithms do receipts[index] = due + self:offset(index, aligned, civil) end
    return receipts
end

-- The states after a hold was ended early: real time is ahead of the queue's by this `shift` now.
function Constraints:resumed(states, at, newest, shift)
    local after = {}
    for index, algorithm in ipairs(self.algorithms) do
        after[index] = states[index]
        if states[index] and self.aligned[index] then
            after[index] = algorithm:resumed(states[index], math.max(at, newest) + shift)
        end
    end
    return after
end

function Constraints:debit(states, at, cost, receipts, shift, skew, now)
    return self:each("debit", states, at, 0, cost, receipts, shift, skew, now)
end

function Constraints:lasts(states, at, shift, skew)
    local longest = 0
    for index, algorithm in ipairs(self.algorithms) do
        if states[index] then
            local real, ahead = self:timeline(index, shift, skew)
            longest = math.max(longest, algorithm:life(states[index], at + real, ahead))
        end
    end
    return longest
end

-- inside

function Constraints:each(operation, states, at, due, cost, receipts, shift, skew, now)
    Exact.whole("receipts", #receipts, #self.algorithms, #self.algorithms)
    local after = {}
    for index, algorithm in ipairs(self.algorithms) do
        local real, ahead = self:timeline(index, shift, skew)
        local receipt, since = receipts[index], now - shift + real
        if operation == "debit" and not self.aligned[index] then since = at end
        after[index] = states[index]
        -- A limit that has not counted the call has nothing to give back.
        if operation ~= "refund" or (receipt and not self:has_moved(index, due, receipt, shift)) then
            after[index] =
                algorithm[operation](algorithm, states[index] or nil, since, ahead, cost, receipt) or false
        end
    end
    return after
end

-- How far an algorithm's receipts are ahead of the queue's time.
function Constraints:offset(index, aligned, civil)
    if self.aligned[index] then return aligned end
    return self.civil[index] and civil or 0
end

-- How far an algorithm's time is ahead of the queue's, and civil time of the algorithm's.
function Constraints:timeline(index, shift, skew)
    if self.aligned[index] then return shift, skew end
    return 0, shift + skew
end

-- Whether a hold was ended since a charge, which may lie in an earlier window now than its receipt tells.
function Constraints:has_moved(index, due, receipt, shift)
    return self.aligned[index] and type(receipt) == "number" and receipt > due + shift
end
