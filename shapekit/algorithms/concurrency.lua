-- needs base exact runs
-- The twin of concurrency.py: same names, same steps.
--
-- A state is {the latest instant seen, owners, those who sit, those who stand in line}; an owner is
-- {its nonce, when its lease ends, the call that it came with}.

local Concurrency = setmetatable({}, Algorithm)
Concurrency.__index = Concurrency
twins.concurrency = Concurrency
Concurrency.MOST_WAITING = 10000
Concurrency.REFUSED = -1
-- Nonces and numbers of calls stay exact in a double.
Concurrency.LARGEST = 2^53 - 1

-- spec: "concurrency", limit, lease.
function Concurrency.new(spec)
    return setmetatable({
        limit = Exact.whole("limit", spec[2], 1, 10000),
        lease = Exact.whole("lease", spec[3], 1, 2^51),
    }, Concurrency)
end

function Concurrency:thaw(frozen)
    local newest, owners, seats, line = unpack(frozen)
    if #frozen ~= 4 then damaged() end
    check_numbers({newest}, 1)
    for _, one in ipairs(owners) do
        if one[3] < 1 then damaged() end
    end
    Runs.check(seats, 10000)
    Runs.check(line, self.MOST_WAITING)
    return frozen
end

function Concurrency:enter(s, now, skew, owner, number, may_wait)
    Exact.whole("owner", owner, 0, self.LARGEST)
    Exact.whole("number", number, 1, self.LARGEST)
    Exact.whole("may_wait", may_wait, 0, 1)
    local time, owners, seats, line = self:settled(s, now)
    local stands_at = Runs.place(line, owner, number)
    if stands_at == 0 and Runs.place(seats, owner, number) == 0 then
        -- Where there is a free seat, nobody waits any more.
        if Runs.count(seats) < self.limit then
            seats = Runs.joined(seats, owner, number)
        else
            local waiting = Runs.count(line)
            if may_wait == 0 or waiting >= self.MOST_WAITING then return s, {self.REFUSED, 0}, 0, false end
            line, stands_at = Runs.joined(line, owner, number), waiting + 1
        end
    end
    owners = self:renewed(owners, owner, time, number)
    local room = {time, owners, seats, line}
    return room, {stands_at, self.came_with(owners, owner)}, self:life(room, now), true
end

function Concurrency:watch(s, now, skew, owner)
    Exact.whole("owner", owner, 0, self.LARGEST)
    return self:told(s, now, owner, self:settled(s, now))
end

function Concurrency:leave(s, now, skew, owner, number)
    Exact.whole("owner", owner, 0, self.LARGEST)
    Exact.whole("number", number, 1, self.LARGEST)
    local time, owners, seats, line = self:settled(s, now)
    seats, line = Runs.without(seats, owner, number), Runs.without(line, owner, number)
    return self:told(s, now, owner, self:filled(time, owners, seats, line))
end

function Concurrency:keep(s, now, skew, owner, upto, numbers)
    Exact.whole("owner", owner, 0, self.LARGEST)
    Exact.whole("upto", upto, 0, self.LARGEST)
    if type(numbers) ~= "table" then error("shapekit: numbers " .. tostring(numbers) .. " is no list", 0) end
    local alive = {}
    for _, number in ipairs(numbers) do alive[Exact.whole("number", number, 1, self.LARGEST)] = true end
    local time, owners, seats, line = self:settled(s, now)
    if self.came_with(owners, owner) > 0 then owners = self:renewed(owners, owner, time, 0) end
    seats, line = Runs.only(seats, owner, upto, alive), Runs.only(line, owner, upto, alive)
    return self:told(s, now, owner, self:filled(time, owners, seats, line))
end

function Concurrency:life(s, now)
    local life = 0
    for _, one in ipairs(s[2]) do life = math.max(life, one[2] - now) end
    return life
end

-- inside

function Concurrency:settled(s, now)
    if not s then return now, {}, {}, {} end
    local newest, owners, seats, line = unpack(s)
    local time = math.max(now, newest)
    local living, left = {}, {}
    for _, one in ipairs(owners) do
        if one[2] > time then
            living[one[1]] = true
            left[#left + 1] = one
        end
    end
    if #left == #owners then return self:filled(time, owners, seats, line) end
    return self:filled(time, left, Runs.of_owners(seats, living), Runs.of_owners(line, living))
end

function Concurrency:filled(time, owners, seats, line)
    local free = self.limit - Runs.count(seats)
    if free <= 0 or #line == 0 then return time, owners, seats, line end
    seats = Runs.copy(seats)
    local rest = {}
    for _, run in ipairs(line) do
        local owner, first, last = unpack(run)
        local finish = math.min(last, first + free - 1)
        if free > 0 then
            Runs.add(seats, owner, first, finish)
            free = free - (finish - first + 1)
            first = finish + 1
        end
        if first <= last then rest[#rest + 1] = {owner, first, last} end
    end
    return time, owners, seats, rest
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

function Concurrency:told(s, now, owner, time, owners, seats, line)
    local present, left = {}, {}
    for _, run in ipairs(seats) do present[run[1]] = true end
    for _, run in ipairs(line) do present[run[1]] = true end
    for _, one in ipairs(owners) do
        if present[one[1]] then left[#left + 1] = one end
    end
    local came_with = self.came_with(left, owner)
    local told = {came_with}
    if came_with > 0 then Runs.tell(seats, owner, told) end
    local room = {time, left, seats, line}
    if not s or self.same({s[2], s[3], s[4]}, {left, seats, line}) then return s, told, 0, false end
    return room, told, self:life(room, now), true
end
