-- needs exact queue/queue
-- The twin of adaptive.py: same names, same steps.
--
-- A state is {tail, tail_rest, newest, generation, number, book, anchor, virtual, law}. Grants are those of the
-- queue at the highest rate, which runs on the clock's time. Tempo is that clock; a hold stops it. A law is
-- {share, ceiling, low, progress, since, told, streak, cap, cap_at}.

local Tempo = {}

do

local FULL = 2^30
local END = 2^52

function Tempo.shown(anchor, virtual, share, now)
    if now <= anchor then return virtual end
    return virtual + Exact.part(now - anchor, share, FULL)
end

function Tempo.real(anchor, virtual, share, time)
    if time <= virtual then return anchor end
    local rest = (time - virtual) % share
    local wholes = (time - virtual - rest) / share * FULL
    if wholes >= END then return END end
    return math.min(END, anchor + wholes + Exact.up(Exact.part(FULL, rest, share)))
end

Tempo.FULL, Tempo.LEAST = FULL, 2^10

end

local Aimd = {}

do

local floor = math.floor
local ALL = 256
local KEPT = {236, 218, 192}
local NEARER = 246
local SOON_AGAIN = 6000000
local WORTH = 200000
local STRIDE = 2000000
local GRACE = 50000
local PLATEAU = 20000000
local STEPS = 128
local ALL_STEPS = STEPS * STEPS * STEPS
local BEYOND = 20
local CLIMB = 30000000
local START = 3000000

function Aimd.cold_law(least)
    return {least, 0, 0, 0, 0, 0, 0, Tempo.FULL, 0}
end

function Aimd.check_law(law)
    check_numbers(law, 9)
    local share, ceiling, low, progress, _, _, streak, cap = unpack(law)
    local is_sound = #law == 9
        and math.min(share, cap) >= Tempo.LEAST
        and math.max(share, cap, ceiling, low) <= Tempo.FULL
        and math.min(ceiling, low, progress, streak) >= 0
        and progress <= 4 * PLATEAU
        and streak <= #KEPT
    if not is_sound then damaged() end
end

function Aimd.present(law)
    return math.min(law[1], law[8])
end

function Aimd.after_refusal(law, now, left, till, least)
    local share, ceiling, low, progress, since, told, streak, cap, cap_at = unpack(law)
    if left < since or (ceiling > 0 and progress == 0) then
        return {share, ceiling, low, progress, math.max(since, till), told, streak, cap, cap_at}
    end
    local met = math.min(share, cap)
    if ceiling == 0 then
        streak = #KEPT
    elseif progress < SOON_AGAIN then
        streak = math.min(streak + 1, #KEPT)
    else
        streak = 1
    end
    local lowered = math.max(least, floor(met * KEPT[streak] / ALL))
    if ceiling > 0 and progress < PLATEAU then met = floor(met * NEARER / ALL) end
    return {lowered, math.max(lowered, met), lowered, 0, math.max(till, now + GRACE), now, streak, cap, cap_at}
end

function Aimd.after_success(law, now, count, left)
    local share, ceiling, low, progress, since, told, streak, cap, cap_at = unpack(law)
    if left < since then return law end
    local gain = math.max(0, math.min(now - told, count * WORTH, STRIDE))
    told = math.max(told, now)
    progress = math.max(1, math.min(progress + gain, 4 * PLATEAU))
    local grown
    if ceiling == 0 then
        grown = share + floor(share * gain / START)
    elseif progress < PLATEAU then
        local left_over = floor((PLATEAU - progress) * STEPS / PLATEAU)
        grown = ceiling - floor((ceiling - low) * (left_over * left_over * left_over) / ALL_STEPS)
    elseif progress < 2 * PLATEAU then
        local beyond = floor((progress - PLATEAU) * STEPS / PLATEAU)
        grown = ceiling + floor(floor(ceiling * BEYOND / ALL) * (beyond * beyond * beyond) / ALL_STEPS)
    else
        grown = share + floor(share * gain / CLIMB)
    end
    return {math.max(share, math.min(grown, cap)), ceiling, low, progress, since, told, streak, cap, cap_at}
end

function Aimd.after_statement(law, cap, left)
    if left < law[9] then return law end
    local share, ceiling, low, progress, since, told, streak = unpack(law)
    return {share, ceiling, low, progress, since, told, streak, cap, left}
end

end

local AdaptiveQueue = {}
AdaptiveQueue.__index = AdaptiveQueue
twins["queue/adaptive"] = AdaptiveQueue

do

local up, whole = Exact.up, Exact.whole
local UNKNOWN = -1
local LONGEST = 2^51
local KEPT = 3600000000
local LEAST_GRACE = 10000
local SOON = 250000

-- spec: its name, the lowest share, and the queue at the highest rate.
function AdaptiveQueue.new(spec)
    local self = setmetatable({least = whole("least", spec[2], Tempo.LEAST, Tempo.FULL)}, AdaptiveQueue)
    self.grid = twin(spec[3])
    return self
end

function AdaptiveQueue:freeze(s)
    return s
end

function AdaptiveQueue:thaw(frozen)
    check_numbers(frozen, 5)
    local book, anchor, virtual, law = unpack(frozen, 6)
    check_numbers({anchor, virtual}, 2)
    if #frozen ~= 9 then damaged() end
    self.grid:check_book(book)
    Aimd.check_law(law)
    return frozen
end

local function joined(line, anchor, virtual, law)
    local tail, rest, newest, generation, number = unpack(line, 1, 5)
    return {tail, rest, newest, generation, number, line[8], anchor, virtual, law}
end

local function parted(s)
    local tail, rest, newest, generation, number, book, anchor, virtual, law = unpack(s)
    return {tail, rest, newest, generation, number, 0, 0, book, {}}, anchor, virtual, law
end

-- The answer to an admitted call is {wait, due, departs_at, held, cost, generation, number, start,
-- start_rest, the tail, its rest and the newest departure before it, what the clock shows, its share}; the answer
-- to a refused call is {wait, now, held, cost, decision}.
function AdaptiveQueue:reserve(s, now, skew, cost, max_wait, nonce)
    if max_wait then whole("max_wait", max_wait, 0, Exact.LARGEST) end
    local line, anchor, virtual, law = self:known(s, now, nonce)
    local share = Aimd.present(law)
    local at = Tempo.shown(anchor, virtual, share, now)
    local after, answer = self.grid:reserve(line, at, skew, cost, false, nonce)
    local departs_at = math.max(now, Tempo.real(anchor, virtual, share, at + answer[1]))
    local wait = departs_at - now
    if max_wait and wait > max_wait then
        local full = Tempo.real(anchor, virtual, share, up(line[1], line[2]))
        local burst = self.grid.burst
        local told = {0, burst, burst, 0, full, wait - max_wait, false, false}
        return s, {wait, now, math.max(anchor, line[8][6] or 0) > now and 1 or 0, cost, told}, 0, false
    end
    local kept = joined(after, anchor, virtual, law)
    answer[1], answer[3] = wait, departs_at
    answer[4] = (wait > 0 or (line[8][6] or 0) > now) and 1 or 0
    answer[13], answer[14] = at, share
    return kept, answer, self:lasts(kept, now), true
end

function AdaptiveQueue:reserve_run(s, now, skew, cost, max_wait, nonce, times)
    return one_by_one(self, self.reserve, times, s, now, skew, cost, max_wait, nonce)
end

function AdaptiveQueue:confirm(s, now, skew)
    local known = self:remembered(s, now)
    if not known then return {UNKNOWN, 0, 0, now, 0} end
    return {known[4], 0, known[7], now, known[6][6] or 0, known[8], Aimd.present(known[9])}
end

function AdaptiveQueue:follow(s, now, skew)
    return LeakyQueue.follow(self, s, now, skew)
end

function AdaptiveQueue:changes(s)
    return s[6][7] or ""
end

function AdaptiveQueue:cancel(s, now, skew, grant)
    self.grid:check(grant)
    local known = self:remembered(s, now)
    if not known then return s, 0, 0, false end
    local line, anchor, virtual, law = parted(known)
    local at = Tempo.shown(anchor, virtual, Aimd.present(law), now)
    local after, done, _, changed = self.grid:cancel(line, at, skew, grant)
    return self:changed(s, now, after, anchor, virtual, law, done, changed)
end

function AdaptiveQueue:settle(s, now, skew, grant, actual, nonce)
    local line, anchor, virtual, law = self:known(s, now, nonce)
    local at = Tempo.shown(anchor, virtual, Aimd.present(law), now)
    local after, done, _, changed = self.grid:settle(line, at, skew, grant, actual, nonce)
    return self:changed(s, now, after, anchor, virtual, law, done, changed)
end

function AdaptiveQueue:late(s, now, skew, calls)
    return LeakyQueue.late(self, s, now, skew, calls)
end

function AdaptiveQueue:life(s, now)
    return self:lasts(s, now)
end

function AdaptiveQueue:moved_on(s, now, skew, generation, by, cost, nonce)
    whole("generation", generation, UNKNOWN, Exact.LARGEST)
    whole("by", by, 0, Exact.LARGEST)
    whole("cost", cost, 1, 1e12)
    local line, anchor, virtual, law = self:known(s, now, nonce)
    local share = Aimd.present(law)
    local at, free_at = Tempo.shown(anchor, virtual, share, now), math.max(now, anchor)
    local grace = anchor > now and 0 or math.max(math.floor(LEAST_GRACE * share / Tempo.FULL),
        math.floor(up(self.grid:width(1)) * 3 / 4))
    local is_late = line[4] ~= generation or at - by > grace
    if not is_late or free_at > now + SOON then return nil, free_at, UNKNOWN end
    local leaves_at = free_at
    if anchor <= now then
        local slot = self.grid:next_slot(line[1], line[2], at)
        leaves_at = math.max(now, Tempo.real(anchor, virtual, share, slot))
    end
    local ends = leaves_at + Tempo.real(0, 0, share, up(self.grid:width(cost)))
    local after = joined(line, ends, at, law)
    if ends > now + SOON then after[6] = self.grid.standing(after[6], ends) end
    return after, leaves_at, ends
end

function AdaptiveQueue:hold(s, now, skew, length, nonce)
    whole("length", length, 1, LONGEST)
    local line, anchor, virtual, law = self:known(s, now, nonce)
    if now + length <= anchor then return s, anchor - now, 0, false end
    local held = self:stopped(line, anchor, virtual, law, now, length)
    return held, length, self:lasts(held, now), true
end

function AdaptiveQueue:resume(s, now, skew, notice)
    whole("notice", notice, 0, LONGEST)
    local known = self:remembered(s, now)
    if not known then return s, 0, 0, false end
    local ends = math.max(now + notice, known[6][8] or 0)
    if known[7] <= ends then return s, math.max(0, known[7] - now), 0, false end
    local freed = {unpack(known)}
    freed[7] = ends
    return freed, ends - now, self:lasts(freed, now), true
end

function AdaptiveQueue:mark(s, now, skew, length, nonce)
    local line, anchor, virtual, law = self:known(s, now, nonce)
    local after, left, _, is_new = self.grid:mark(line, now, skew, length, nonce)
    if not is_new then return s, left, 0, false end
    local kept = joined(after, anchor, virtual, law)
    return kept, left, self:lasts(kept, now), true
end

function AdaptiveQueue:throttled(s, now, skew, age, length, nonce)
    whole("age", age, 0, LONGEST)
    whole("length", length, 0, LONGEST)
    local line, anchor, virtual, law = self:known(s, now, nonce)
    if length > 0 and now + length > anchor then
        line, anchor, virtual, law = parted(self:stopped(line, anchor, virtual, law, now, length))
    end
    local after = Aimd.after_refusal(law, now, now - age, anchor, self.least)
    return self:steered(line, anchor, virtual, law, after, now)
end

function AdaptiveQueue:succeeded(s, now, skew, count, age, nonce)
    whole("count", count, 0, 1e12)
    whole("age", age, 0, LONGEST)
    local line, anchor, virtual, law = self:known(s, now, nonce)
    local after = Aimd.after_success(law, now, count, now - age)
    return self:steered(line, anchor, virtual, law, after, now)
end

function AdaptiveQueue:stated(s, now, skew, share, age, nonce)
    whole("share", share, Tempo.LEAST, Tempo.FULL)
    whole("age", age, 0, LONGEST)
    local line, anchor, virtual, law = self:known(s, now, nonce)
    local after = Aimd.after_statement(law, share, now - age)
    return self:steered(line, anchor, virtual, law, after, now)
end

-- inside

-- The line, the clock and the law, for a cold key as well.
function AdaptiveQueue:known(s, now, nonce)
    local known = self:remembered(s, now)
    if not known then return self.grid:cold(nonce), now, now, Aimd.cold_law(self.least) end
    return parted(known)
end

function AdaptiveQueue:remembered(s, now)
    if not s or self:lasts(s, now) == 0 then return nil end
    return s
end

function AdaptiveQueue:lasts(s, now)
    local ends = Tempo.real(s[7], s[8], Aimd.present(s[9]), up(s[1], s[2]))
    return math.max(0, ends + KEPT - now, (s[6][6] or 0) - now)
end

function AdaptiveQueue:changed(s, now, line, anchor, virtual, law, done, is_new)
    if not is_new then return s, done, 0, false end
    local after = joined(line, anchor, virtual, law)
    return after, done, self:lasts(after, now), true
end

function AdaptiveQueue:stopped(line, anchor, virtual, law, now, length)
    local at = Tempo.shown(anchor, virtual, Aimd.present(law), now)
    -- An idle queue must not send at once, when the hold ends, what it has saved.
    local idle, idle_rest = self.grid:spread(self.grid.burst - 1)
    local stopped = {unpack(line)}
    stopped[1], stopped[2] = Exact.later(line[1], line[2], at + idle, idle_rest)
    return joined(stopped, now + length, at, law)
end

-- The state with the clock at the law's speed, from now on or from the end of the hold.
function AdaptiveQueue:steered(line, anchor, virtual, before, after, now)
    local runs, was = Aimd.present(after), Aimd.present(before)
    if runs ~= was then
        virtual = Tempo.shown(anchor, virtual, was, now)
        anchor = math.max(now, anchor)
    end
    local state = joined(line, anchor, virtual, after)
    return state, {was, runs, math.max(0, anchor - now)}, self:lasts(state, now), true
end

end
