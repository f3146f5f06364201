-- needs base exact
-- The twin of inflight.py. A run is {owner, first, last}. Differences are computed before sums, which might not
-- be exact.

local Runs = {}

-- Refuses runs that were read and are empty or too many: some operations visit every number.
function Runs.check(runs, most)
    local many = 0
    for _, run in ipairs(runs) do
        check_numbers(run, 3)
        if run[2] > run[3] then damaged() end
        many = many + (run[3] - run[2]) + 1
    end
    if many > most then damaged() end
end

-- Appends to a list of runs in place: only for a list that nothing else refers to.
function Runs.add(runs, owner, first, last)
    local newest = runs[#runs]
    if newest and newest[1] == owner and newest[3] + 1 == first then
        runs[#runs] = {owner, newest[2], last}
    else
        runs[#runs + 1] = {owner, first, last}
    end
end

function Runs.copy(runs)
    local copied = {}
    for index, run in ipairs(runs) do copied[index] = run end
    return copied
end

function Runs.joined(runs, owner, first, last)
    local after = Runs.copy(runs)
    Runs.add(after, owner, first, last or first)
    return after
end

function Runs.without(runs, owner, number)
    local left, found = {}, false
    for _, run in ipairs(runs) do
        if not found and run[1] == owner and run[2] <= number and number <= run[3] then
            found = true
            if run[2] < number then left[#left + 1] = {owner, run[2], number - 1} end
            if number < run[3] then left[#left + 1] = {owner, number + 1, run[3]} end
        else
            left[#left + 1] = run
        end
    end
    return left
end

function Runs.of_owners(runs, owners)
    local kept = {}
    for _, run in ipairs(runs) do
        if owners[run[1]] then kept[#kept + 1] = run end
    end
    return kept
end

function Runs.only(runs, owner, upto, numbers)
    local kept = {}
    for _, run in ipairs(runs) do
        if run[1] ~= owner then
            Runs.add(kept, run[1], run[2], run[3])
        else
            for number = run[2], run[3] do
                if number > upto or numbers[number] then Runs.add(kept, owner, number, number) end
            end
        end
    end
    return kept
end

function Runs.count(runs)
    local many = 0
    for _, run in ipairs(runs) do many = many + (run[3] - run[2]) + 1 end
    return many
end

function Runs.place(runs, owner, number)
    local before = 0
    for _, run in ipairs(runs) do
        if run[1] == owner and run[2] <= number and number <= run[3] then
            return before + (number - run[2]) + 1
        end
        before = before + (run[3] - run[2]) + 1
    end
    return 0
end

-- Appends the owner's numbers to a list.
function Runs.tell(runs, owner, list)
    for _, run in ipairs(runs) do
        if run[1] == owner then
            for number = run[2], run[3] do list[#list + 1] = number end
        end
    end
    return list
end

-- The limit itself.
--
-- A state is {the latest instant seen, owners, permits, line}; an owner is {its nonce, the end of its lease,
-- its first call}.

local Concurrency = setmetatable({}, Algorithm)
Concurrency.__index = Concurrency
twins.inflight = Concurrency
Concurrency.MOST_WAITING = 10000
Concurrency.REFUSED = -1
-- Nonces and numbers of calls stay exact in a double.
Concurrency.LARGEST = 2^53 - 1

-- spec: its name, limit, lease.
function Concurrency.new(spec)
    return setmetatable({
        limit = Exact.whole("limit", spec[2], 1, 10000),
        lease = Exact.whole("lease", spec[3], 1, 2^51),
    }, Concurrency)
end

function Concurrency:thaw(frozen)
    local newest, owners, permits, line = unpack(frozen)
    if #frozen ~= 4 then damaged() end
    check_numbers({newest}, 1)
    for _, one in ipairs(owners) do
        if one[3] < 1 then damaged() end
    end
    Runs.check(permits, 10000)
    Runs.check(line, self.MOST_WAITING)
    return frozen
end

function Concurrency:enter(s, now, skew, owner, number, may_wait)
    Exact.whole("owner", owner, 0, self.LARGEST)
    Exact.whole("number", number, 1, self.LARGEST)
    Exact.whole("may_wait", may_wait, 0, 1)
    local time, owners, permits, line = self:settled(s, now)
    local stands_at = Runs.place(line, owner, number)
    if stands_at == 0 and Runs.place(permits, owner, number) == 0 then
        -- As long as there is a free permit, no call waits.
        if Runs.count(permits) < self.limit then
            permits = Runs.joined(permits, owner, number)
        else
            local waiting = Runs.count(line)
            if may_wait == 0 or waiting >= self.MOST_WAITING then return s, {self.REFUSED, 0}, 0, false end
            line, stands_at = Runs.joined(line, owner, number), waiting + 1
        end
    end
    owners = self:renewed(owners, owner, time, number)
    local room = {time, owners, permits, line}
    return room, {stands_at, self.came_with(owners, owner)}, self:life(room, now), true
end

function Concurrency:watch(s, now, skew, owner)
    Exact.whole("owner", owner, 0, self.LARGEST)
    return self:told(s, now, owner, self:settled(s, now))
end

function Concurrency:leave(s, now, skew, owner, number)
    Exact.whole("owner", owner, 0, self.LARGEST)
    Exact.whole("number", number, 1, self.LARGEST)
    local time, owners, permits, line = self:settled(s, now)
    permits, line = Runs.without(permits, owner, number), Runs.without(line, owner, number)
    return self:told(s, now, owner, self:filled(time, owners, permits, line))
end

function Concurrency:keep(s, now, skew, owner, upto, numbers)
    Exact.whole("owner", owner, 0, self.LARGEST)
    Exact.whole("upto", upto, 0, self.LARGEST)
    if type(numbers) ~= "table" then error("shapekit: numbers " .. tostring(numbers) .. " is no list", 0) end
    local alive = {}
    for _, number in ipairs(numbers) do alive[Exact.whole("number", number, 1, self.LARGEST)] = true end
    local time, owners, permits, line = self:settled(s, now)
    if self.came_with(owners, owner) > 0 then owners = self:renewed(owners, owner, time, 0) end
    permits, line = Runs.only(permits, owner, upto, alive), Runs.only(line, owner, upto, alive)
    return self:told(s, now, owner, self:filled(time, owners, permits, line))
end

function Concurrency:life(s, now)
    local life = 0
    for _, one in ipairs(s[2]) do life = math.max(life, one[2] - now) end
    return life
end

-- inside

function Concurrency:settled(s, now)
    if not s then return now, {}, {}, {} end
    local newest, owners, permits, line = unpack(s)
    local time = math.max(now, newest)
    local living, left = {}, {}
    for _, one in ipairs(owners) do
        if one[2] > time then
            living[one[1]] = true
            left[#left + 1] = one
        end
    end
    if #left == #owners then return self:filled(time, owners, permits, line) end
    return self:filled(time, left, Runs.of_owners(permits, living), Runs.of_owners(line, living))
end

function Concurrency:filled(time, owners, permits, line)
    local free = self.limit - Runs.count(permits)
    if free <= 0 or #line == 0 then return time, owners, permits, line end
    permits = Runs.copy(permits)
    local rest = {}
    for _, run in ipairs(line) do
        local owner, first, last = unpack(run)
        local finish = math.min(last, first + free - 1)
        if free > 0 then
            Runs.add(permits, owner, first, finish)
            free = free - (finish - first + 1)
            first = finish + 1
        end
        if first <= last then rest[#rest + 1] = {owner, first, last} end
    end
    return time, owners, permits, rest
end

function Concurrency:renewed(owners, owner, time, number)
    local till, after, is_known = time + self.lease, {}, false
    for index, one in ipairs(owners) do
        after[index] = one
        if one[1] == owner then
            is_known = true
            after[index] = {owner, math.max(one[2], till), one[3]}
        end
    end
    if not is_known then after[#after + 1] = {owner, till, number} end
    return after
end

function Concurrency.came_with(owners, owner)
    for _, one in ipairs(owners) do
        if one[1] == owner then return one[3] end
    end
    return 0
end

function Concurrency.same(one, other)
    if one == other then return true end
    if type(one) ~= "table" or type(other) ~= "table" or #one ~= #other then return false end
    for index, part in ipairs(one) do
        if not Concurrency.same(part, other[index]) then return false end
    end
    return true
end

function Concurrency:told(s, now, owner, time, owners, permits, line)
    local present, left = {}, {}
    for _, run in ipairs(permits) do present[run[1]] = true end
    for _, run in ipairs(line) do present[run[1]] = true end
    for _, one in ipairs(owners) do
        if present[one[1]] then left[#left + 1] = one end
    end
    local came_with = self.came_with(left, owner)
    local told = {came_with}
    if came_with > 0 then Runs.tell(permits, owner, told) end
    local room = {time, left, permits, line}
    if not s or self.same({s[2], s[3], s[4]}, {left, permits, line}) then return s, told, 0, false end
    return room, told, self:life(room, now), true
end
