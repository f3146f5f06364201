-- needs base exact queue/constraints rows queue/slots
-- The twin of queue.py: same names, same steps.
--
-- A line is {tail, tail_rest, newest, generation, number, until, shift, book, parts}; its book is empty, or
-- {what is free, other places, rows, floor, words, mark, changes, until when time stands still, the shift that the
-- last hold began with, and pairs of departures between which no call leaves} (see slots.lua).
-- A grant arrives as {generation, number, due, cost, start, start_rest, end, end_rest, the tail, its rest and the
-- newest departure before it, receipts}.

local LeakyQueue = {}
LeakyQueue.__index = LeakyQueue
twins["queue/queue"] = LeakyQueue

do

local plus, minus, less, later, up = Exact.plus, Exact.minus, Exact.less, Exact.later, Exact.up
local whole, LARGEST = Exact.whole, Exact.LARGEST
local UNKNOWN = -1
local LONGEST = 2^51
local END = 2^52
local LEAST_GRACE = 10000
local SOON = 250000
local MOST_LATE = 1000000
-- How far, in µs, a settlement that adds cost moves an unpaced tail; a call moves it by a 1024th.
local DEBT = 4
-- How many pauses ahead are remembered.
local MOST_PAUSES = 16

-- The book of a line, or an empty one.
local function opened(book)
    if #book > 0 then return book end
    return {"", {}, "", -1, "", 0, "", 0, UNKNOWN, {}}
end

-- The book of a line with its pauses, as far as they are known.
local function with_pauses(book, base, pauses)
    book = {unpack(opened(book))}
    book[9], book[10] = base, pauses
    return book
end

-- The book with the shift that the hold began with; UNKNOWN if there is no hold that could be ended.
local function with_base(book, base)
    if #book == 0 then return book end
    return with_pauses(book, base, book[10])
end

-- Whether the last hold has moved no call so far: only if `save_nothing`; else a hold moves all calls.
local function has_moved_none(line)
    return #line[9] > 0 and line[8][9] == line[7]
end

-- The queue's own time. It goes on in a hold that has moved no call yet.
local function time_of(line, now)
    local till, shift = line[6], line[7]
    if till > now and not has_moved_none(line) then return till - shift end
    return now - shift
end

-- The book of a line whose time stands still for a late call: no hold can be ended before that.
function LeakyQueue.standing(book, ends)
    book = {unpack(opened(book))}
    book[8] = ends
    return book
end

-- Until when a part of the key is held.
local function marked(book)
    return book[6] or 0
end

-- Whether a key, or a part of it, is held.
local function held_at(line, now)
    return math.max(line[6], marked(line[8])) > now and 1 or 0
end

local function has_free(book)
    return #book > 0 and (book[1] ~= "" or #book[2] > 0)
end

-- spec: its name, burst, q, T as {whole, rest}, whether it paces, the largest cost, and for each constraint
-- its spec, whether it is aligned, and its kind; then whether none of them saves up in a hold.
function LeakyQueue.new(spec)
    local q = whole("q", spec[3], 1, 2^26)
    local p, p_rest = whole("interval", spec[4][1], 0, LONGEST), whole("interval", spec[4][2], 0, q - 1)
    local self = setmetatable({
        burst = whole("burst", spec[2], 1, 1e12),
        q = q,
        p = p,
        p_rest = p_rest,
        paced = spec[5],
        max_cost = whole("max_cost", spec[6], 1, 1e12),
        constraints = Constraints.new(spec[7]),
        save_nothing = spec[8],
    }, LeakyQueue)
    local lead, lead_rest = self:spread(self.burst - 1)
    self.places = Places.new(self.constraints, p, p_rest, lead, lead_rest, q, self.paced)
    return self
end

-- For a queue that only paces, was never held, and to which nothing was given back, five numbers are enough.
function LeakyQueue:freeze(s)
    local tail, rest, newest, generation, number, till, shift, book, parts = unpack(s)
    if till == 0 and shift == 0 and #book == 0 and #parts == 0 then
        return {tail, rest, tail - newest, generation, number}
    end
    return {tail, rest, newest, generation, number, till, shift, book, self.constraints:freeze(parts)}
end

function LeakyQueue:thaw(frozen)
    local tail, rest, newest, generation, number, till, shift, book, parts = unpack(frozen)
    check_numbers(frozen, till and 7 or 5)
    if not till then return {tail, rest, tail - newest, generation, number, 0, 0, {}, {}} end
    self:check_book(book)
    return {tail, rest, newest, generation, number, till, shift, book, self.constraints:thaw(parts)}
end

function LeakyQueue:check_book(book)
    if #book == 0 then return end
    if #book ~= 10 or type(book[7]) ~= "string" or type(book[10]) ~= "table" then damaged() end
    check_numbers({book[6], book[8], book[9]}, 3)
    check_numbers(book[10], #book[10])
    if #self.constraints.algorithms > 0 then self.places:check(book) else Gaps.check(book) end
    Gone.check(book)
end

-- The answer to an admitted call is {wait, due, shift, held, cost, generation, number, start, start_rest, the
-- tail, its rest and the newest departure before it}; under constraints also their receipts; in a place that was
-- given back also its end and the rest of the end. The answer to a refused call is {wait, now, held, cost,
-- decision}.
function LeakyQueue:reserve(s, now, skew, cost, max_wait, nonce)
    whole("cost", cost, 1, self.max_cost)
    if max_wait then whole("max_wait", max_wait, 0, Exact.LARGEST) end
    local line = s or self:cold(nonce)
    local tail, tail_rest, newest, generation, number, till, shift, book, parts = unpack(line)
    local q = self.q
    local at = time_of(line, now)
    if has_moved_none(line) then
        tail, tail_rest = self:tail_at(line, now)
        line = {tail, tail_rest, unpack(line, 3)}
    end
    if has_free(book) then
        line = self:swept(line, at, skew, now)
        book, parts = line[8], line[9]
        local after, answer, life, persist = self:moved_in(line, now, skew, at, cost, max_wait)
        if answer then return after, answer, life, persist end
    end
    number = number + 1
    local due, ready, ready_rest = at, tail, tail_rest
    if cost < self.burst then
        local leap, leap_rest = self:spread(self.burst - cost)
        ready, ready_rest = minus(tail, tail_rest, leap, leap_rest, q)
    end
    if self.paced and less(at, 0, ready, ready_rest) then due = up(ready, ready_rest) end
    if #parts > 0 then return self:reserve_under(line, now, skew, cost, max_wait, due) end
    local wait = due + shift - now
    if wait > (max_wait or math.huge) then
        return s, self:refused(false, line, now, wait, cost, max_wait), 0, false
    end
    local start, start_rest = later(tail, tail_rest, at, 0)
    local width, width_rest = self:width(cost)
    local after, after_rest = plus(start, start_rest, width, width_rest, q)
    return {after, after_rest, due, generation, number, till, shift, book, parts},
        {wait, due, shift, held_at(line, now), cost, generation, number, start, start_rest,
            tail, tail_rest, newest},
        math.max(up(after, after_rest) + shift, marked(book)) - now, true
end

-- A run of reservations. If only the pace decides, the answer is now and the line before: {now, tail, tail_rest,
-- newest, generation, number, until, shift, mark}.
function LeakyQueue:reserve_run(s, now, skew, cost, max_wait, nonce, times)
    whole("cost", cost, 1, self.max_cost)
    if max_wait then whole("max_wait", max_wait, 0, Exact.LARGEST) end
    local line = s or self:cold(nonce)
    local tail, tail_rest, newest, generation, number, till, shift, book, parts = unpack(line)
    local at = math.max(now, till) - shift
    local start, start_rest = later(tail, tail_rest, at, 0)
    local leap, leap_rest = self:spread(math.max(0, self.burst - cost))
    local ready, ready_rest = minus(start, start_rest, leap, leap_rest, self.q)
    local function due_of(place)
        local ahead, ahead_rest = self:spread(cost * (place - 1))
        return math.max(at, up(plus(ready, ready_rest, ahead, ahead_rest, self.q)))
    end
    local function fits(count)
        return due_of(count) + shift - now <= (max_wait or math.huge)
    end
    if not self.paced or #parts > 0 or has_free(book) or cost * times > self.max_cost
        or not (max_wait or fits(times)) then
        return one_by_one(self, self.reserve, times, s, now, skew, cost, max_wait, nonce)
    end
    local told = {now, tail, tail_rest, newest, generation, number, till, shift, marked(book)}
    local count = Exact.greatest(times, fits)
    if count == 0 then return s, told, 0, false end
    local width, width_rest = self:spread(cost * count)
    local after, after_rest = plus(start, start_rest, width, width_rest, self.q)
    return {after, after_rest, due_of(count), generation, number + count, till, shift, book, parts}, told,
        math.max(up(after, after_rest) + shift, marked(book)) - now, true
end

function LeakyQueue:confirm(s, now, skew)
    if not s then return {UNKNOWN, 0, 0, now, 0} end
    return {s[4], s[7], s[6], now, marked(s[8])}
end

function LeakyQueue:follow(s, now, skew)
    local standing = self:confirm(s, now, skew)
    standing[#standing + 1] = s and self:changes(s) or ""
    if not s then return s, standing, 0, false end
    return s, standing, self:life(s, now, skew), true
end

-- How waiting calls have moved: text that only Python reads.
function LeakyQueue:changes(s)
    return s[8][7] or ""
end

function LeakyQueue:cancel(s, now, skew, grant)
    self:check(grant)
    local line = s and self:swept(s, time_of(s, now), skew, now)
    if not line or line[4] ~= grant[1] or grant[4] == 0 then return s, 0, 0, false end
    local tail, tail_rest, newest, generation, number, till, shift, book, parts = unpack(line)
    local at = time_of(line, now)
    local _, own, due, cost, start, start_rest, last, last_rest, back, back_rest, before, receipts =
        unpack(grant)
    book = opened(book)
    if due < at or Gone.is_gone(book, own, due) then return s, 0, 0, false end
    book = Gone.with_slot(book, own, due, at)
    -- A grant has no place any more if its caller missed a settlement for less.
    local at_the_end = last == tail and last_rest == tail_rest and less(start, start_rest, last, last_rest)
    local in_the_middle = less(start, start_rest, last, last_rest) and less(last, last_rest, tail, tail_rest)
    if #parts == 0 then
        local free = book[1]
        if in_the_middle then
            free = Gaps.given_back(free, start, start_rest, last, last_rest)
        elseif at_the_end then
            tail, tail_rest, free = Gaps.retracted(free, start, start_rest)
            newest = math.min(newest, up(tail, tail_rest))
        end
        book = {free, unpack(book, 2)}
        return self:kept({tail, tail_rest, newest, generation, number, till, shift, book, parts}, now, skew)
    end
    -- Whether the call is the last of an unpaced line: only settlements came after it. Those that added cost have
    -- moved the tail.
    local is_newest = not self.paced and due == newest
    if is_newest then
        local since = Gone.settled_since(book, generation, own)
        local moved, moved_rest = minus(tail, tail_rest, last, last_rest, self.q)
        is_newest = number == own + since and moved_rest == 0 and moved % DEBT == 0 and moved / DEBT <= since
    end
    local left
    local call = book[7] ~= "" and "changed" or nil
    if in_the_middle and not is_newest then
        left = self.places:given_back(book,
            {start, start_rest, last, last_rest, due, cost, back, back_rest, before, receipts}, number)
    end
    if left then
        book = left
    elseif at_the_end then
        -- The tail retracts, also over free places that now end it.
        parts = self.constraints:refund_last(parts, due, cost, receipts, shift, skew, now, before, call)
        if less(start, start_rest, back, back_rest) then back, back_rest = start, start_rest end
        book, tail, tail_rest, newest, parts =
            self.places:retracted(book, back, back_rest, before, parts, at, shift, skew, now)
    else
        parts = self.constraints:refund(parts, due, cost, receipts, shift, skew, now, call)
        if is_newest then newest = math.min(newest, before) end
    end
    return self:kept({tail, tail_rest, newest, generation, number, till, shift, book, parts}, now, skew)
end

function LeakyQueue:settle(s, now, skew, grant, actual, nonce)
    self:check(grant)
    whole("actual", actual, 0, 1e12)
    whole("nonce", nonce, 0, LARGEST)
    local line = s or self:cold(nonce)
    local tail, tail_rest, newest, generation, number, till, shift, book, parts = unpack(line)
    local q = self.q
    local at = time_of(line, now)
    book = opened(book)
    local is_own = generation == grant[1]
    local follows, cost = grant[2], grant[4]
    if not is_own or Gone.is_gone(book, follows, grant[3]) then
        -- A repetition; but after a reset of the key it may be the first time.
        local number_since, cost_since = Gone.last_word(book, grant[1], follows, nonce)
        if number_since then follows, cost = number_since, cost_since end
        local is_over = is_own and (not number_since or Gone.is_gone(book, follows, grant[3]))
        if grant[1] < 0 or is_over or (not number_since and actual <= cost) then return s, 0, 0, false end
    end
    local extra = actual - cost
    if extra == 0 or (extra < 0 and not is_own) then return s, extra == 0 and follows or 0, 0, false end
    if extra > 0 then
        -- Used units stay used, whether or not the key was reset. In a hold they count from where time would go on
        -- if it were ended.
        parts = self.constraints:debit(parts, math.min(at, now - book[9]), extra, grant[12], shift, skew, now)
        -- An unpaced tail moves as well: else `cancel` could take an earlier call for the last one.
        local owed, owed_rest = later(tail, tail_rest, at, 0)
        local width, width_rest = DEBT, 0
        if self.paced then width, width_rest = self:width(extra) end
        owed, owed_rest = plus(owed, owed_rest, width, width_rest, q)
        if owed >= END then owed, owed_rest = END, 0 end
        tail, tail_rest = later(tail, tail_rest, owed, owed_rest)
    else
        local call = book[7] ~= "" and "changed" or grant[3] < at and "left" or nil
        parts = self.constraints:refund(parts, grant[3], -extra, grant[12], shift, skew, now, call)
        local last, last_rest = self:end_of(grant, actual)
        if tail == grant[7] and tail_rest == grant[8] and less(last, last_rest, tail, tail_rest)
            and follows == grant[2] then
            tail, tail_rest = last, last_rest
        end
    end
    if is_own then
        book = Gone.with_slot(book, follows, grant[3], at)
        number = number + 1
        follows = number
    end
    book = Gone.with_word(book, grant[1], grant[2], follows, actual, nonce)
    local after = {tail, tail_rest, newest, generation, number, till, shift, book, parts}
    return after, follows, self:life(after, now, skew), true
end

-- Where a grant ends once it costs `actual`; never later, because extra cost is charged elsewhere.
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
    local tail, tail_rest, newest, generation, number, till, shift, book, parts = unpack(line)
    local ends = now + length
    if ends <= till then return s, till - now, 0, false end
    tail, tail_rest = later(tail, tail_rest, self:idle(time_of(line, now)))
    local first = math.max(now, till) - shift
    if #parts > 0 and self.save_nothing then
        book, first = self:before_hold(line, now, ends)
    elseif till <= now then
        book = with_base(book, UNKNOWN)
    end
    shift = math.max(shift, ends - first)
    parts = self:shifted(line, first, shift, now, skew)
    local held = {tail, tail_rest, newest, generation, number, ends, shift, book, parts}
    return held, length, self:life(held, now, skew), true
end

-- The tail of an idle queue that is held, moved on by the burst: when the hold ends, the queue must not send at
-- once what it has saved.
function LeakyQueue:idle(at)
    local lead, lead_rest = self:spread(self.burst - 1)
    return at + lead, lead_rest
end

-- The book under a hold until `ends`, and the first departure that the hold has to move, as far as known.
function LeakyQueue:before_hold(line, now, ends)
    local newest, till, shift, book = line[3], line[6], line[7], line[8]
    local base, pauses = book[9] or UNKNOWN, book[10] or {}
    local rigid, at, held = math.max(now, till) - shift, time_of(line, now), till > now
    if held and base < 0 then return book, rigid end
    local first = rigid
    -- A call that is due at this very instant may not have left yet.
    if newest < at then
        first = ends - shift
    else
        for index = 1, #pauses, 2 do
            if pauses[index] < at then first = math.max(first, pauses[index + 1]) end
        end
    end
    if not held then base = first > rigid and shift or UNKNOWN end
    return with_pauses(book, base, pauses), first
end

function LeakyQueue:resume(s, now, skew, notice)
    whole("notice", notice, 0, LONGEST)
    if not s then return s, 0, 0, false end
    local tail, tail_rest, newest, generation, number, till, shift, book, parts = unpack(s)
    local ends = math.max(now + notice, book[8] or 0)
    if till <= ends then return s, math.max(0, till - now), 0, false end
    local wanted, base, stood = till - ends, book[9] or UNKNOWN, till - shift
    if base >= 0 then wanted = math.min(wanted, shift - base) end
    if newest >= stood then
        local back = self.constraints:sooner(parts, self:shift(s, stood, -wanted, now), shift, skew)
        if back < wanted then wanted, ends = back, till - back end
    end
    shift = shift - wanted
    parts = self:shifted(s, stood, shift, now, skew)
    parts = self.constraints:resumed(parts, ends - shift, newest, shift)
    local freed = {tail, tail_rest, newest, generation, number, ends, shift, book, parts}
    return freed, ends - now, self:life(freed, now, skew), true
end

function LeakyQueue:mark(s, now, skew, length, nonce)
    whole("length", length, 1, LONGEST)
    local line = s or self:cold(nonce)
    local part_until = marked(line[8])
    if now + length <= part_until then return s, part_until - now, 0, false end
    local after = {unpack(line)}
    after[8] = {unpack(opened(line[8]))}
    after[8][6] = now + length
    return after, length, self:life(after, now, skew), true
end

-- calls: {generation, by, cost, nonce} for each call.
function LeakyQueue:late(s, now, skew, calls)
    if type(calls) ~= "table" then error("shapekit: late calls are not a list", 0) end
    local answers, life, persists = {}, 0, false
    for index, call in ipairs(calls) do
        local moved, leaves_at, stands_until = self:moved_on(s, now, skew, unpack(call, 1, 4))
        answers[index] = {leaves_at, stands_until}
        if moved then s, life, persists = moved, self:life(moved, now, skew), true end
    end
    return s, answers, life, persists
end

function LeakyQueue:moved_on(s, now, skew, generation, by, cost, nonce)
    whole("generation", generation, UNKNOWN, LARGEST)
    whole("by", by, 0, LARGEST)
    whole("cost", cost, 1, 1e12)
    local line = s or self:cold(nonce)
    local tail, tail_rest, newest, own, number, till, shift, book, parts = unpack(line)
    local free_at = math.max(now, till)
    local at = time_of(line, now)
    local late = own == generation and at - by or MOST_LATE + 1
    local grace = math.max(LEAST_GRACE, math.floor(up(self:width(1)) * 3 / 4))
    if not self.paced and #self.constraints.algorithms == 0 then grace = END end
    if till > now then grace = 0 end
    if late <= grace or free_at > now + SOON then
        -- An earlier late call may have moved the whole line: then the slot of this one lies ahead again.
        local slot_at = #parts > 0 and own == generation and by + shift or 0
        return nil, math.max(free_at, slot_at), UNKNOWN
    end
    tail, tail_rest, newest, own, number, till, shift, book = unpack(self:stopped(line, now))
    local first, base = at, till > now and book[9] or UNKNOWN
    if #parts > 0 and late <= MOST_LATE then
        at, shift, base = by, shift + late, base >= 0 and base + late or base
        -- If time stands still for another late call, it has to stand still for this one as well.
        if till <= now or not self.paced then
            book, parts = with_base(book, base), self:shifted(line, first, shift, now, skew)
            return {tail, tail_rest, newest, own, number, till, shift, book, parts}, free_at, free_at
        end
    end
    local leaves_at = till > now and free_at or self:next_slot(tail, tail_rest, at) + shift
    local ends = leaves_at + up(self:width(cost))
    book = with_base(book, base)
    if ends > now + SOON then book = self.standing(book, ends) end
    parts = self:shifted(line, first, ends - at, now, skew)
    return {tail, tail_rest, newest, own, number, ends, ends - at, book, parts}, leaves_at, ends
end

-- The states after the line has moved to this `shift`, from the departure `first` on: limits of real time count
-- calls where they leave now.
function LeakyQueue:shifted(line, first, shift, now, skew)
    local before, parts = line[7], line[9]
    local moved = self:shift(line, first, shift - before, now)
    if #parts == 0 or moved.newest < first or moved.by == 0 then return parts end
    return self.constraints:shifted(parts, moved, before, skew)
end

-- The twin of a Shift in base.py. Its `most` also takes a number of units, and returns how many of them may leave
-- then.
function LeakyQueue:shift(line, first, by, now)
    local tail, tail_rest, newest, book = line[1], line[2], line[3], line[8]
    -- The end of a hold gives back what the hold has taken, even if all waiting calls have given up.
    if by <= 0 then newest = math.max(newest, first) end
    local function most(at, units)
        if not self.paced or units == 0 then return units end
        local room, room_rest = minus(tail, tail_rest, at - 1, 0, self.q)
        return Exact.greatest(units, function(some) return not less(room, room_rest, self:spread(some)) end)
    end
    return {present = now - line[7], first = first, newest = newest, by = by, most = most, pauses = book[10] or {}}
end

function LeakyQueue:next_slot(tail, tail_rest, at)
    if not less(at, 0, tail, tail_rest) or self.p == 0 then return at end
    local q = self.q
    local soonest, soonest_rest = at, 1
    if q == 1 then soonest, soonest_rest = at + 1, 0 end
    local function slot(back)
        local width, width_rest = self:spread(back)
        return minus(tail, tail_rest, width, width_rest, q)
    end
    -- The quotient of two doubles may be off by a slot.
    local ahead, ahead_rest = minus(tail, tail_rest, soonest, soonest_rest, q)
    local back = math.floor((ahead + ahead_rest / q) / (self.p + self.p_rest / q))
    local at_slot, at_rest = slot(back)
    while less(at_slot, at_rest, soonest, soonest_rest) do
        back = back - 1
        at_slot, at_rest = slot(back)
    end
    local before, before_rest = slot(back + 1)
    while not less(before, before_rest, soonest, soonest_rest) do
        back, at_slot, at_rest = back + 1, before, before_rest
        before, before_rest = slot(back + 1)
    end
    return up(at_slot, at_rest)
end

-- requests: {cost, max_wait, nonce} for each call. further: {how many, their span, a nonce}. The answer is the state
-- of the key, {generation, shift, until, now, mark}, the latest number, and the answer to each call. An admitted
-- call is answered without what follows from the first two: {wait, due, cost, start, start_rest, …}.
function LeakyQueue:reserve_many(s, now, skew, requests, further)
    if type(requests) ~= "table" or type(further) ~= "table" then error("shapekit: reservations are not a list", 0) end
    local most, span = whole("most", further[1], 0, 1e12), whole("span", further[2], 0, LONGEST)
    local answers, life, persist, within = {}, 0, false, false
    local function take(cost, max_wait, nonce)
        local after, answer, lives, is_taken = self:reserve(s, now, skew, cost, max_wait, nonce)
        if not is_taken then return answer, false end
        s, life, persist = after, lives, true
        return {answer[1], answer[2], answer[5], unpack(answer, 8)}, true
    end
    for index, one in ipairs(requests) do answers[index] = take(unpack(one, 1, 3)) end
    for _ = 1, most do
        local answer, is_taken = take(1, within, further[3])
        if not is_taken then break end
        answers[#answers + 1] = answer
        within = within or answer[1] + span
    end
    return s, {self:confirm(s, now, skew), s and s[5] or 0, answers}, life, persist
end

function LeakyQueue:cancel_many(s, now, skew, grants)
    if type(grants) ~= "table" then error("shapekit: grants are not a list", 0) end
    local count, life, persist = 0, 0, false
    for index = #grants, 1, -1 do
        local after, is_back, lives, keeps = self:cancel(s, now, skew, grants[index])
        if is_back == 0 then after, is_back, lives, keeps = self:settle(s, now, skew, grants[index], 0, 0) end
        if keeps then s, life, persist = after, lives, true end
        if is_back > 0 then count = count + 1 end
    end
    return s, count, life, persist
end

-- inside

function LeakyQueue:reserve_under(line, now, skew, cost, max_wait, on_grid)
    local tail, tail_rest, newest, generation, number, till, shift, book, parts = unpack(line)
    local due, spent = self.constraints:departure(parts, math.max(on_grid, newest), cost, shift, skew)
    local at = time_of(line, now)
    if till > now and due + shift < till then
        -- The first call that the hold delays: from here on, the hold moves the line.
        at, shift = due, till - due
        line = {unpack(line)}
        line[7] = shift
        due, spent = self.constraints:departure(parts, due, cost, shift, skew)
    end
    local wait = due + shift - now
    if (spent and not max_wait) or wait > (max_wait or math.huge) then
        return line, self:refused(spent, line, now, wait, cost, max_wait), 0, false
    end
    local start, start_rest = later(tail, tail_rest, due > on_grid and due or at, 0)
    local width, width_rest = self:width(cost)
    local after, after_rest = plus(start, start_rest, width, width_rest, self.q)
    number = number + 1
    local charged, receipts, life = self.constraints:charge(parts, at, due, cost, shift, skew, now)
    if due > at or till > now then book = self:pausing(book, newest, at, due) end
    local taken = {after, after_rest, due, generation, number, till, shift, book, charged}
    return taken,
        {wait, due, shift, held_at(line, now), cost, generation, number, start, start_rest,
            tail, tail_rest, newest, receipts},
        math.max(self:clears(taken) + shift, at + life + shift, marked(book)) - now, true
end

-- The book after a call that waits, with the pause before it, if there is one.
function LeakyQueue:pausing(book, newest, at, due)
    local before, pauses = book[10] or {}, {}
    local slot = self.paced and up(self:width(1)) or 0
    local function add(left, following)
        pauses[#pauses + 1] = left
        pauses[#pauses + 1] = following
    end
    for index = 1, #before, 2 do
        -- If calls were given back, this one may come before their pauses.
        if at < before[index + 1] and before[index + 1] <= due then add(before[index], before[index + 1]) end
    end
    if due - newest > slot then add(newest, due) end
    if #pauses > 2 * MOST_PAUSES then
        local shortest = #pauses - 1
        for index = shortest, 1, -2 do
            local length = pauses[index + 1] - pauses[index]
            if length < pauses[shortest + 1] - pauses[shortest] then shortest = index end
        end
        table.remove(pauses, shortest)
        table.remove(pauses, shortest)
    end
    if #pauses == 0 and #before == 0 then return book end
    return with_pauses(book, book[9] or UNKNOWN, pauses)
end

-- The tail for a newcomer. If the last hold has moved no call, the line's saved burst is taken away here: see
-- `idle`.
function LeakyQueue:tail_at(line, now)
    if not has_moved_none(line) then return line[1], line[2] end
    return later(line[1], line[2], self:idle(math.min(now, line[6]) - line[7]))
end

-- The line with time standing still until its hold ends, if it has gone on in the hold so far.
function LeakyQueue:stopped(line, now)
    if not has_moved_none(line) then return line end
    local after = {unpack(line)}
    after[1], after[2] = self:tail_at(line, now)
    after[7], after[8] = line[7] + math.max(0, line[6] - now), with_base(line[8], UNKNOWN)
    return after
end

-- When the line is empty.
function LeakyQueue:clears(line)
    return up(self:tail_at(line, line[6]))
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
        told = {0, self.burst, self.burst, 0, full, wait - (max_wait or 0), false, false}
    end
    return {wait, now, held_at(line, now), cost, told}
end

-- The line without places that have passed; their charges are given back.
function LeakyQueue:swept(line, at, skew, now)
    local book, parts = line[8], line[9]
    if not has_free(book) then return line end
    if #parts > 0 then
        book, parts = self.places:swept(book, parts, at, line[7], skew, now)
    else
        book = {Gaps.after(book[1], at), unpack(book, 2)}
    end
    return {line[1], line[2], line[3], line[4], line[5], line[6], line[7], book, parts}
end

-- Gives a newcomer a place that was given back; nil if no place fits.
function LeakyQueue:moved_in(line, now, skew, at, cost, max_wait)
    local tail, tail_rest, newest, generation, number, till, shift, book, parts = unpack(line)
    local q = self.q
    local held = held_at(line, now)
    local due, answer
    number = number + 1
    if #parts > 0 then
        local place, left = self.places:first(book, cost)
        if not place then return nil end
        local start, start_rest, last, last_rest, leaves, units, back, back_rest, before, receipts =
            unpack(place)
        due, book = leaves, left
        parts = self.constraints:refund(parts, due, units - cost, receipts, shift, skew, now)
        answer = {due + shift - now, due, shift, held, cost, generation, number, start, start_rest,
            back, back_rest, before, receipts, last, last_rest}
    else
        local width, width_rest = self:width(cost)
        -- A gap that begins within the current microsecond has not passed.
        local soonest, soonest_rest = at - 1, 1
        if q == 1 then soonest, soonest_rest = at, 0 end
        local index, start, start_rest = Gaps.room(book[1], soonest, soonest_rest, width, width_rest, q)
        if not index then return nil end
        local last, last_rest = plus(start, start_rest, width, width_rest, q)
        local leap, leap_rest = self:spread(math.max(0, self.burst - cost))
        due = math.max(at, up(minus(start, start_rest, leap, leap_rest, q)))
        book = {Gaps.taken(book[1], index, last, last_rest), unpack(book, 2)}
        answer = {due + shift - now, due, shift, held, cost, generation, number, start, start_rest,
            tail, tail_rest, newest}
    end
    if answer[1] > (max_wait or math.huge) then
        return line, self:refused(false, line, now, answer[1], cost, max_wait), 0, false
    end
    local after = {tail, tail_rest, newest, generation, number, till, shift, book, parts}
    return after, answer, self:life(after, now, skew), true
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
    local at = time_of(line, now)
    local ends = math.max(self:clears(line), at + self.constraints:lasts(line[9], at, shift, skew))
    return math.max(0, ends + shift - now, till - now, marked(line[8]) - now)
end

end
