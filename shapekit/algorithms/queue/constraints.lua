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

-- call: whether it waits (nil), has "left", or limits may have "changed" since.
function Constraints:refund(states, due, cost, receipts, shift, skew, now, call)
    if cost == 0 or #receipts == 0 then return states end
    local after = self:checked(states, receipts)
    for index, algorithm in ipairs(self.algorithms) do
        local real, ahead = self:timeline(index, shift, skew)
        local receipt = self:counted_at(index, due, receipts[index], shift, skew, call)
        -- A limit that has not counted the call has nothing to give back.
        if receipt then
            after[index] = algorithm:refund(states[index] or nil, now - shift + real, ahead, cost, receipt) or false
        end
    end
    return after
end

-- `refund`, if all later charges were given back, and `newest` is the last departure that is left.
function Constraints:refund_last(states, due, cost, receipts, shift, skew, now, newest, call)
    if cost == 0 or #receipts == 0 then return states end
    local after = self:checked(states, receipts)
    for index, algorithm in ipairs(self.algorithms) do
        local real, ahead = self:timeline(index, shift, skew)
        local receipt = self:counted_at(index, due, receipts[index], shift, skew, call)
        if receipt then
            -- By aligned time it may have shifted since.
            local left = not self.aligned[index] and newest or nil
            local before = states[index] or nil
            after[index] = algorithm:refund_last(before, now - shift + real, ahead, cost, receipt, left) or false
        end
    end
    return after
end

-- Gives back one unit of each of these departures, which ascend.
function Constraints:refund_many(states, dues, aligned, civil, shift, skew, now, call)
    local after = {}
    for index, algorithm in ipairs(self.algorithms) do
        local real, ahead = self:timeline(index, shift, skew)
        local offset = self:offset(index, aligned, civil)
        local charges, known = {}, {}
        for _, due in ipairs(dues) do
            local charged_at = self:counted_at(index, due, due + offset, shift, skew, call)
            local place = charged_at and algorithm:together(charged_at)
            if charged_at and not place then damaged() end
            if charged_at and not known[place] then
                known[place] = {charged_at, 0}
                charges[#charges + 1] = known[place]
            end
            if charged_at then known[place][2] = known[place][2] + 1 end
        end
        after[index] = algorithm:refund_many(states[index] or nil, now - shift + real, ahead, charges) or false
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

-- The states after a hold, or its end, has moved waiting calls, as seen on the queue's time.
function Constraints:shifted(states, moved, shift, skew)
    local after = {unpack(states)}
    for index, algorithm in ipairs(self.algorithms) do
        local own, ahead = self:own_shift(index, states, moved, shift, skew)
        if own then after[index] = algorithm:shifted(states[index], own, ahead) end
    end
    return after
end

-- How much sooner than now, up to what `moved` asks for, calls may leave so that no window of real time sees more
-- than its limit.
function Constraints:sooner(states, moved, shift, skew)
    local by = -moved.by
    local function tight(back)
        local found = {}
        moved.by = -back
        for index, algorithm in ipairs(self.algorithms) do
            local own, ahead = self:own_shift(index, states, moved, shift, skew)
            for _, one in ipairs(own and algorithm:crowded(states[index], own, ahead) or {}) do
                found[#found + 1] = one
            end
        end
        return found
    end
    local found = tight(by)
    if #found == 0 then return by end
    -- Move the calls to the next window, or else to the start of a later one.
    local soonest, later = by, by
    for _, one in ipairs(found) do
        local limit, at = unpack(one)
        local start = limit:bounds(at)
        local _, ends = limit:bounds(at - by)
        soonest, later = math.min(soonest, at - ends), math.min(later, start - ends)
    end
    soonest, later = math.max(0, soonest), math.max(0, later)
    if #tight(soonest) == 0 then return soonest end
    for _, one in ipairs(tight(later)) do
        local limit, at = unpack(one)
        -- The same place for one of several limits is perhaps none for another.
        if limit:bounds(at) - (limit:bounds(at - later)) ~= later then return 0 end
    end
    return later
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
    local after = self:checked(states, receipts)
    for index, algorithm in ipairs(self.algorithms) do
        local real, ahead = self:timeline(index, shift, skew)
        local since = self:is_real(index) and now - shift + real or at
        after[index] = algorithm:debit(states[index] or nil, since, ahead, cost, receipts[index]) or false
    end
    return after
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

-- How the calls of a limit that counts by real time move, and how far civil time is ahead of its own then; nil for
-- any other limit.
function Constraints:own_shift(index, states, moved, shift, skew)
    if not states[index] or not self:is_real(index) then return nil end
    local offset = shift + (self.aligned[index] and 0 or skew)
    local own = Algorithm.shift_later(moved, offset)
    function own.most(instant, count)
        count = moved.most(instant - offset, count)
        for other, limit in ipairs(self.algorithms) do
            if states[other] and not self:is_real(other) then
                count = math.min(count, limit:since(states[other], instant - offset))
            end
        end
        return count
    end
    return own, self.aligned[index] and skew or offset + moved.by
end

-- A copy of the states; raises if there are not as many receipts.
function Constraints:checked(states, receipts)
    Exact.whole("receipts", #receipts, #self.algorithms, #self.algorithms)
    return {unpack(states)}
end

-- Whether an algorithm counts by real or civil time, which go on in a hold.
function Constraints:is_real(index)
    return self.aligned[index] or self.civil[index]
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

-- The receipt of a call after a hold has moved it; false if a hold was ended since then, so that the call may count
-- in an earlier window than the receipt says.
function Constraints:counted_at(index, due, receipt, shift, skew, call)
    if type(receipt) ~= "number" or not (self.aligned[index] or self.civil[index]) then return receipt end
    local limit, leaves = self.algorithms[index], due + shift + (self.aligned[index] and 0 or skew)
    if self.aligned[index] and receipt > leaves then return false end
    -- Civil time is measured anew at each decision, and may be ahead by up to a second more or less.
    if receipt > leaves + 1e6 and limit:together(receipt) ~= limit:together(leaves) then
        return call == "changed" and receipt
    end
    if not call and receipt < leaves and leaves <= receipt + shift then return leaves end
    return receipt
end
