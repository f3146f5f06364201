-- needs base exact constraints places gaps
-- The twin of leaky_queue.py and many_turns.py: same names, same steps.
--
-- A line is {tail, tail_rest, newest, generation, version, until, shift, places, parts}. A grant comes as
-- {generation, version, due, cost, start, start_rest, end, end_rest, the tail, its rest and the newest
-- departure before it, receipts}.

local LeakyQueue = {}
LeakyQueue.__index = LeakyQueue
twins.leaky_queue = LeakyQueue

do

local plus, minus, less, later, up = Exact.plus, Exact.minus, Exact.less, Exact.later, Exact.up
local whole, LARGEST = Exact.whole, Exact.LARGEST
local UNKNOWN = -1
local LONGEST = 2^51
local END = 2^52

-- spec: "leaky_queue", burst, q, T as {whole, rest}, whether it paces, the largest cost, and of each
-- constraint its spec, whether it is aligned, and its kind.
function LeakyQueue.new(spec)
    local q = whole("q", spec[3], 1, 2^26)
    local p, p_rest = whole("interval", spec[4][1], 0, LONGEST), whole("interval", spec[4][2], 0, q - 1)
    return setmetatable({
        burst = whole("burst", spec[2], 1, 1e12),
        q = q,
        p = p,
        p_rest = p_rest,
        gaps = Gaps.new(p, p_rest, q),
        paced = spec[5],
        max_cost = whole("max_cost", spec[6], 1, 1e12),
        constraints = Constraints.new(spec[7]),
    }, LeakyQueue)
end

-- A queue that only paces and was never held: four numbers say it all, or five once turns came back.
function LeakyQueue:freeze(s)
    local tail, rest, newest, generation, version, till, shift, places, parts = unpack(s)
    if till == 0 and shift == 0 and #places == 0 and #parts == 0 then
        return {tail, rest, tail - newest, generation, version > 0 and version or nil}
    end
    return {tail, rest, newest, generation, version, till, shift, places, self.constraints:freeze(parts)}
end

function LeakyQueue:thaw(frozen)
    local tail, rest, newest, generation, version, till, shift, places, parts = unpack(frozen)
    check_numbers(frozen, till and 7 or math.max(4, #frozen))
    if not till then return {tail, rest, tail - newest, generation, version or 0, 0, 0, {}, {}} end
    Places.check(places, #self.constraints.algorithms)
    return {tail, rest, newest, generation, version, till, shift, places, self.constraints:thaw(parts)}
end

-- An admitted call is answered with {wait, due, shift, held, cost, generation, version, start, start_rest,
-- the tail, its rest and the newest departure before it}; under constraints also with their receipts, in a
-- hole with its end and its rest too. A refused one with {wait, now, held, cost, decision}.
function LeakyQueue:reserve(s, now, skew, cost, max_wait, nonce)
    whole("cost", cost, 1, self.max_cost)
    if max_wait then whole("max_wait", max_wait, 0, LONGEST) end
    local line = s or self:cold(nonce)
    local tail, tail_rest, newest, generation, version, till, shift, places, parts = unpack(line)
    local q = self.q
    local held = till > now
    local at = (held and till or now) - shift
    if #places > 0 then
        line = self:swept(line, at, skew)
        places, parts = line[8], line[9]
        local after, answer, life, persist = self:moved_in(line, now, skew, at, cost, max_wait)
        if answer then return after, answer, life, persist end
    end
    local due, ready, ready_rest = at, tail, tail_rest
    if cost < self.burst then
        local leap, leap_rest = self:spread(self.burst - cost)
        ready, ready_rest = minus(tail, tail_rest, leap, leap_rest, q)
    end
    if self.paced and less(at, 0, ready, ready_rest) then due = up(ready, ready_rest) end
    if #parts > 0 then return self:reserve_under(line, now, skew, cost, max_wait, due) end
    local wait = due + shift - now
    if wait > (max_wait or LONGEST) then
        return s, self:refused(false, line, now, wait, cost, max_wait), 0, false
    end
    local start, start_rest = later(tail, tail_rest, at, 0)
    local width, width_rest = self:width(cost)
    local after, after_rest = plus(start, start_rest, width, width_rest, q)
    return {after, after_rest, due, generation, version, till, shift, places, parts},
        {wait, due, shift, held and 1 or 0, cost, generation, version, start, start_rest,
            tail, tail_rest, newest},
        up(after, after_rest) + shift - now, true
end

function LeakyQueue:confirm(s, now, skew)
    if not s then return {UNKNOWN, 0, 0, now} end
    return {s[4], s[7], s[6], now}
end

function LeakyQueue:cancel(s, now, skew, grant)
    self:check(grant)
    local line = self:standing(s, now, skew, grant)
    if not line or grant[4] == 0 or grant[3] < math.max(now, line[6]) - line[7] then
        return s, 0, 0, false
    end
    local tail, tail_rest, newest, generation, version, till, shift, places, parts = unpack(line)
    local since = version + 1
    local at = math.max(now, till) - shift
    local _, _, due, cost, start, start_rest, last, last_rest, back, back_rest, before, receipts =
        unpack(grant)
    local in_the_middle = less(last, last_rest, tail, tail_rest)
    if #parts == 0 then
        local left
        if in_the_middle then
            left = self.gaps:given_back(places, at, start, start_rest, last, last_rest)
            if not left then return s, 0, 0, false end
        else
            tail, tail_rest, left =
                self.gaps:retracted(places, at, start, start_rest, tail, tail_rest, since)
            newest = math.min(newest, up(tail, tail_rest))
        end
        return self:kept({tail, tail_rest, newest, generation, since, till, shift, left, parts}, now, skew)
    end
    if in_the_middle then
        if Places.is_full(places) then return s, 0, 0, false end
        local hole =
            {start, start_rest, last, last_rest, since, due, cost, back, back_rest, before, receipts}
        local left = Places.with(places, hole, self.q)
        return self:kept({tail, tail_rest, newest, generation, since, till, shift, left, parts}, now, skew)
    end
    -- The tail retracts, over the free places that now end it too.
    parts = self.constraints:refund(parts, at, cost, receipts, shift, skew)
    for index = #places, 1, -1 do
        local place = places[index]
        if place[3] == back and place[4] == back_rest and not Places.is_fence(place) then
            start, start_rest = place[1], place[2]
            back, back_rest, before = place[8], place[9], place[10]
            parts = self.constraints:refund(parts, at, place[7], place[11], shift, skew)
        end
    end
    local left = Places.with(places, Places.taken(start, start_rest, tail, tail_rest, since), self.q)
    return self:kept({back, back_rest, before, generation, since, till, shift, left, parts}, now, skew)
end

function LeakyQueue:settle(s, now, skew, grant, actual, nonce)
    self:check(grant)
    local extra = whole("actual", actual, 0, 1e12) - grant[4]
    local line = self:standing(s, now, skew, grant)
    if not line then
        if extra <= 0 or grant[1] < 0 then return s, 0, 0, false end
        -- What was used was used, whether or not the key is still the same.
        line = s or self:cold(nonce)
    end
    local tail, tail_rest, newest, generation, version, till, shift, places, parts = unpack(line)
    local q = self.q
    local at = math.max(now, till) - shift
    if extra > 0 then
        parts = self.constraints:debit(parts, at, extra, grant[12], shift, skew)
        if self.paced then
            local owed, owed_rest = later(tail, tail_rest, at, 0)
            local width, width_rest = self:width(extra)
            owed, owed_rest = plus(owed, owed_rest, width, width_rest, q)
            if owed >= END then owed, owed_rest = END, 0 end
            tail, tail_rest = later(tail, tail_rest, owed, owed_rest)
        end
    else
        parts = self.constraints:refund(parts, at, -extra, grant[12], shift, skew)
        local last, last_rest = self:end_of(grant, actual)
        if tail == grant[7] and tail_rest == grant[8] and less(last, last_rest, tail, tail_rest) then
            -- The grant must not be able to give back what others may have by then.
            version = version + 1
            places = Places.with(places, Places.taken(last, last_rest, tail, tail_rest, version), q)
            tail, tail_rest = last, last_rest
        end
    end
    return self:kept({tail, tail_rest, newest, generation, version, till, shift, places, parts}, now, skew)
end

-- Where a grant ends once it costs `actual`; never later, for what it costs more stands elsewhere.
function LeakyQueue:end_of(grant, actual)
    if not self.paced then return grant[7], grant[8] end
    local width, width_rest = self:width(actual)
    local last, last_rest = plus(grant[5], grant[6], width, width_rest, self.q)
    if less(grant[7], grant[8], last, last_rest) then return grant[7], grant[8] end
    return last, last_rest
end

function LeakyQueue:hold(s, now, skew, length, nonce)
    whole("length", length, 1, LONGEST)
    local line = s or self:cold(nonce)
    local tail, tail_rest, newest, generation, version, till, shift, places, parts = unpack(line)
    local ends = now + length
    if ends <= till then return s, till - now, 0, false end
    -- What an idle queue could have sent at once it may not send when the hold ends.
    local idle, idle_rest = self:spread(self.burst - 1)
    idle = idle + math.max(now, till) - shift
    tail, tail_rest = later(tail, tail_rest, idle, idle_rest)
    shift = shift + ends - math.max(now, till)
    local held = {tail, tail_rest, newest, generation, version, ends, shift, places, parts}
    return held, length, self:life(held, now, skew), true
end

function LeakyQueue:resume(s, now, skew, notice)
    whole("notice", notice, 0, LONGEST)
    local ends = now + notice
    if not s or s[6] <= ends then return s, s and math.max(0, s[6] - now) or 0, 0, false end
    local tail, tail_rest, newest, generation, version, till, shift, places, parts = unpack(s)
    local freed =
        {tail, tail_rest, newest, generation, version, ends, shift - (till - ends), places, parts}
    return freed, notice, self:life(freed, now, skew), true
end

-- asked: of each who asks {cost, max_wait, nonce}. further: {how many, their span, a nonce}. The answer is
-- how the key stands, {generation, shift, until, now}, the version, and the answers; of an admitted call
-- without what is said by then: {wait, due, cost, start, start_rest, …}.
function LeakyQueue:reserve_many(s, now, skew, asked, further)
    if type(asked) ~= "table" or type(further) ~= "table" then error("shapekit: turns for nobody", 0) end
    local most, span = whole("most", further[1], 0, 1e12), whole("span", further[2], 0, LONGEST)
    local answers, life, persist, within = {}, 0, false, false
    local function take(cost, max_wait, nonce)
        local after, answer, lives, is_taken = self:reserve(s, now, skew, cost, max_wait, nonce)
        if not is_taken then return answer, false end
        s, life, persist = after, lives, true
        return {answer[1], answer[2], answer[5], unpack(answer, 8)}, true
    end
    for index, one in ipairs(asked) do answers[index] = take(unpack(one, 1, 3)) end
    for _ = 1, most do
        local answer, is_taken = take(1, within, further[3])
        if not is_taken then break end
        answers[#answers + 1] = answer
        within = within or answer[1] + span
    end
    return s, {self:confirm(s, now, skew), s and s[5] or 0, answers}, life, persist
end

function LeakyQueue:cancel_many(s, now, skew, grants)
    if type(grants) ~= "table" then error("shapekit: turns of nobody", 0) end
    local count, life, persist = 0, 0, false
    for index = #grants, 1, -1 do
        local after, is_back, lives, keeps = self:cancel(s, now, skew, grants[index])
        if is_back == 0 then after, is_back, lives, keeps = self:settle(s, now, skew, grants[index], 0, 0) end
        if keeps then s, life, persist = after, lives, true end
        count = count + is_back
    end
    return s, count, life, persist
end

-- inside

function LeakyQueue:reserve_under(line, now, skew, cost, max_wait, on_grid)
    local tail, tail_rest, newest, generation, version, till, shift, places, parts = unpack(line)
    local due, spent = self.constraints:departure(parts, math.max(on_grid, newest), cost, shift, skew)
    local wait = due + shift - now
    if (spent and not max_wait) or wait > (max_wait or LONGEST) then
        return line, self:refused(spent, line, now, wait, cost, max_wait), 0, false
    end
    local at = math.max(now, till) - shift
    local start, start_rest = later(tail, tail_rest, due > on_grid and due or at, 0)
    local width, width_rest = self:width(cost)
    local after, after_rest = plus(start, start_rest, width, width_rest, self.q)
    local charged, receipts, life = self.constraints:charge(parts, at, due, cost, shift, skew)
    return {after, after_rest, due, generation, version, till, shift, places, charged},
        {wait, due, shift, till > now and 1 or 0, cost, generation, version, start, start_rest,
            tail, tail_rest, newest, receipts},
        math.max(up(after, after_rest), at + life) + shift - now, true
end

function LeakyQueue:cold(nonce)
    return {0, 0, 0, whole("nonce", nonce, 0, LARGEST), 0, 0, 0, {}, self.constraints.cold}
end

-- T * cost
function LeakyQueue:spread(cost)
    local units, rest = Exact.part(cost, self.p_rest, self.q)
    return self.p * cost + units, rest
end

function LeakyQueue:width(cost)
    return self:spread(self.paced and cost or 1)
end

function LeakyQueue:refused(spent, line, now, wait, cost, max_wait)
    local shift, told = line[7], spent
    if spent then
        told[5], told[6] = spent[5] + shift, wait
    else
        local full = up(line[1], line[2]) + shift
        told = {0, self.burst, self.burst, 0, full, wait - (max_wait or LONGEST), false, false, 0}
    end
    return {wait, now, line[6] > now and 1 or 0, cost, told}
end

-- Without the places that time has passed; what they were charged is given back.
function LeakyQueue:swept(line, at, skew)
    local kept, parts, shift = {}, line[9], line[7]
    for _, place in ipairs(line[8]) do
        if #parts > 0 and not Places.is_fence(place) and place[6] < at then
            parts = self.constraints:refund(parts, at, place[7], place[11], shift, skew)
            place = Places.taken(unpack(place, 1, 5))
        end
        if less(at, 0, place[3], place[4]) then kept[#kept + 1] = place end
    end
    return {line[1], line[2], line[3], line[4], line[5], line[6], shift, kept, parts}
end

-- Gives a newcomer what somebody has left who has gone; nothing if nothing suits.
function LeakyQueue:moved_in(line, now, skew, at, cost, max_wait)
    local tail, tail_rest, newest, generation, version, till, shift, places, parts = unpack(line)
    local q = self.q
    local held = till > now and 1 or 0
    local due, left, answer
    if #parts > 0 then
        local found
        for index, place in ipairs(places) do
            if not found and not Places.is_fence(place) and place[6] >= at and place[7] >= cost then
                found = index
            end
        end
        if not found then return nil end
        local start, start_rest, last, last_rest, since, leaves, units, back, back_rest, before, receipts =
            unpack(places[found])
        due, left = leaves, {unpack(places)}
        left[found] = Places.taken(start, start_rest, last, last_rest, since)
        left = Places.bounded(left, q)
        parts = self.constraints:refund(parts, at, units - cost, receipts, shift, skew)
        answer = {due + shift - now, due, shift, held, cost, generation, version, start, start_rest,
            back, back_rest, before, receipts, last, last_rest}
    else
        local width, width_rest = self:width(cost)
        local start, start_rest, stretch = self.gaps:room(places, at, width, width_rest)
        if not start then return nil end
        local last, last_rest = plus(start, start_rest, width, width_rest, q)
        local leap, leap_rest = self:spread(math.max(0, self.burst - cost))
        due = math.max(at, up(minus(start, start_rest, leap, leap_rest, q)))
        left = self.gaps:filled(places, at, stretch, last, last_rest, version)
        answer = {due + shift - now, due, shift, held, cost, generation, version, start, start_rest,
            start, start_rest, newest}
    end
    if answer[1] > (max_wait or LONGEST) then
        return line, self:refused(false, line, now, answer[1], cost, max_wait), 0, false
    end
    local after = {tail, tail_rest, newest, generation, version, till, shift, left, parts}
    return after, answer, self:life(after, now, skew), true
end

-- The line, swept, if the grant's place on it is still the grant's.
function LeakyQueue:standing(s, now, skew, grant)
    if not s or s[4] ~= grant[1] then return nil end
    local start, start_rest, last, last_rest = unpack(grant, 5, 8)
    for _, place in ipairs(s[8]) do
        if place[5] > grant[2] and less(place[1], place[2], last, last_rest)
            and less(start, start_rest, place[3], place[4]) then
            return nil
        end
    end
    local at = math.max(now, s[6]) - s[7]
    if self.gaps:overlaps(s[8], at, start, start_rest, last, last_rest) then return nil end
    return self:swept(s, at, skew)
end

function LeakyQueue:check(grant)
    local most = {LARGEST, LARGEST, LARGEST, 1e12, LARGEST, self.q - 1, LARGEST, self.q - 1,
        LARGEST, self.q - 1, LARGEST}
    for index, bound in ipairs(most) do
        whole("grant", grant[index], index == 1 and UNKNOWN or 0, bound)
    end
    if type(grant[12]) ~= "table" then error("shapekit: a grant without receipts", 0) end
end

function LeakyQueue:kept(line, now, skew)
    return line, 1, self:life(line, now, skew), true
end

-- How long the line differs from a cold one.
function LeakyQueue:life(line, now, skew)
    local till, shift = line[6], line[7]
    local at = math.max(now, till) - shift
    local ends = math.max(up(line[1], line[2]), self.constraints:full_at(line[9], at, shift, skew))
    return math.max(0, ends + shift - now, till - now)
end

end
