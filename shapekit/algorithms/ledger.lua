-- needs base exact
-- The twin of ledger.py: same names, same steps; without `charge`, because only queues charge ahead of now,
-- and they keep their limits without a ledger.
--
-- A state is {the limit's state, when this life began, units charged in it, what is settled}; if nothing is
-- settled, the last is an empty table. A receipt is {when its life began, the last unit, how many, the limit's
-- own receipt}.

local Ledger = setmetatable({}, Algorithm)
Ledger.__index = Ledger
twins.ledger = Ledger
Ledger.MOST_RUNS = 64
Ledger.MOST_DEBITS = 64

-- spec: its name, the limit.
function Ledger.new(spec)
    local limit = twin(spec[2])
    return setmetatable({limit = limit, max_cost = limit.max_cost}, Ledger)
end

function Ledger:freeze(s)
    return {s[2], s[3], s[4], self.limit:freeze(s[1])}
end

-- The settled part is validated where it is used: an operation that does not use it only carries it along.
function Ledger:thaw(frozen)
    local born, charged, settled = frozen[1], frozen[2], frozen[3]
    check_numbers(frozen, 2)
    if type(settled) ~= "table" or type(frozen[4]) ~= "table" or born < 0 or charged < 0 then damaged() end
    return {self.limit:thaw(frozen[4]), born, charged, settled}
end

function Ledger:decide(s, now, skew, cost)
    local after, told, life, admitted = self.limit:decide(s and s[1], now, skew, cost)
    if not admitted then return s, told, life, false end
    return self:receipted(self:counted(s, after, now, cost), told, cost), told, life, true
end

-- An admission in short form: the limit's answer, followed by the name of the charge.
function Ledger:check(s, now, skew, cost)
    local after, told, life, admitted = self.limit:check(s and s[1], now, skew, cost)
    if not admitted then return s, told, life, false end
    local book = self:counted(s, after, now, cost)
    local last = #told
    told[last + 1], told[last + 2], told[last + 3] = book[2], book[3], cost
    return book, told, life, true
end

function Ledger:check_run(s, now, skew, cost, times)
    local count, after, before
    if self.limit.admit_run and (not s or s[3] + cost * times <= Exact.LARGEST) then
        count, after, before = self.limit:admit_run(s and s[1], now, cost, times)
    end
    if not count then return one_by_one(self, self.check, times, s, now, skew, cost) end
    local told = s and {now, s[2], s[3], unpack(before)} or {now}
    if count == 0 then return s, told, 0, false end
    return self:counted(s, after, now, count * cost), told, self.limit:life(after, now), true
end

function Ledger:earliest(s, at, skew, cost)
    return self.limit:earliest(s and s[1], at, skew, cost)
end

function Ledger:peek(s, now, skew)
    return self.limit:peek(s and s[1], now, skew)
end

function Ledger:forecast(s, now, skew, cost)
    return self.limit:forecast(s and s[1], now, skew, cost)
end

function Ledger:life(s, now, skew)
    return self.limit:life(s[1], now, skew)
end

function Ledger:refund(s, now, skew, cost, receipt)
    if s and self:names(receipt) then
        local before, born, charged, settled = unpack(s)
        local last, units = receipt[2], receipt[3]
        if receipt[1] == born and 0 < units and units <= last and last <= charged then
            local ends = now + self.limit:life(before, now, skew)
            local after = self:given_back(settled, last - units, last, now, ends, charged)
            local back, told, life, persist =
                self.limit:refund_passed(before, now, skew, math.min(cost, units), receipt[4])
            if after and persist then return {back, born, charged, after}, told, life, true end
        end
    end
    return s, self:peek(s, now, skew), 0, false
end

function Ledger:debit(s, now, skew, cost, receipt)
    local named = self:names(receipt)
    local until_us, mark, runs, debits
    if named then until_us, mark, runs, debits = self:settlements(s and s[4] or {}) end
    if debits then
        for place = 1, #debits, 2 do
            if debits[place] == receipt[1] and debits[place + 1] == receipt[2] then
                return s, self:peek(s, now, skew), 0, false
            end
        end
    end
    local after, told, life = self.limit:debit(s and s[1], now, skew, cost, false)
    local book = self:receipted(self:counted(s, after, now, cost), told, cost)
    if named then
        -- If the count got too high, a new life has begun, in which nothing is settled.
        if not debits or #book[4] == 0 then until_us, mark, runs, debits = now + life, book[3], {}, {} end
        debits = {unpack(debits)}
        debits[#debits + 1], debits[#debits + 2] = receipt[1], receipt[2]
        if #debits > 2 * self.MOST_DEBITS then debits = {unpack(debits, 3)} end
        book[4] = {until_us, mark, runs, debits}
    end
    return book, told, life, true
end

-- inside

-- Whether a receipt names a charge.
function Ledger:names(receipt)
    return type(receipt) == "table" and #receipt == 4 and type(receipt[1]) == "number"
        and type(receipt[2]) == "number" and type(receipt[3]) == "number"
end

-- The book with one more charge.
function Ledger:counted(s, after, now, cost)
    if not s then return {after, now, cost, {}} end
    if s[3] + cost > Exact.LARGEST then return {after, math.max(now, s[2] + 1), cost, {}} end
    return {after, s[2], s[3] + cost, s[4]}
end

function Ledger:receipted(book, told, cost)
    told[8] = {book[2], book[3], cost, told[8]}
    return book
end

-- The settled units with `first` to `last` added; nil if one was given back already. Charges end at `ends`.
function Ledger:given_back(settled, first, last, now, ends, charged)
    local until_us, mark, runs, debits = self:settlements(settled)
    if not debits then until_us, mark, runs, debits = ends, charged, {}, {} end
    if now >= until_us then
        -- The limit has forgotten the charges before the mark.
        local at = self:up_to(runs, mark)
        local floored = {0}
        if at % 2 == 0 then floored[2] = mark end
        for place = at + 1, #runs do floored[#floored + 1] = runs[place] end
        runs, until_us, mark = floored, ends, charged
    end
    local at = self:up_to(runs, first)
    if at % 2 == 1 or (runs[at + 1] and runs[at + 1] < last) then return nil end
    local after = {unpack(runs, 1, at)}
    if after[at] == first then after[at] = nil else after[at + 1] = first end
    if runs[at + 1] == last then at = at + 1 else after[#after + 1] = last end
    for place = at + 1, #runs do after[#after + 1] = runs[place] end
    if #after > 2 * self.MOST_RUNS then
        table.remove(after, 2)
        table.remove(after, 2)
    end
    return {until_us, mark, after, debits}
end

-- The parts of what is settled; without values if that is empty.
function Ledger:settlements(settled)
    if #settled == 0 then return end
    local until_us, mark, runs, debits = unpack(settled)
    check_numbers(settled, 2)
    if mark < 1 or type(runs) ~= "table" or type(debits) ~= "table" then damaged() end
    if #runs > 2 * self.MOST_RUNS or #debits > 2 * self.MOST_DEBITS or #runs % 2 + #debits % 2 > 0 then
        damaged()
    end
    check_numbers(runs, #runs)
    check_numbers(debits, #debits)
    for place = 2, #runs do
        if runs[place] <= runs[place - 1] then damaged() end
    end
    return until_us, mark, runs, debits
end

-- How many of these ascending numbers are not above `most`.
function Ledger:up_to(numbers, most)
    local count = 0
    while count < #numbers and numbers[count + 1] <= most do count = count + 1 end
    return count
end
