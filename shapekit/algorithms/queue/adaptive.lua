-- needs queue/queue queue/aimd
-- The twin of adaptive.py: same names, same steps.
--
-- A state is {tail, tail_rest, newest, generation, number, book, anchor, virtual, law}. Grants are those of
-- the queue at the highest rate, whose time is what the clock shows.

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
    Aimd.check(law)
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
-- start_rest, the tail, its rest and the newest departure before it, what the clock shows, its share}; that
-- to a refused one is {wait, now, held, cost, decision}.
function AdaptiveQueue:reserve(s, now, skew, cost, max_wait, nonce)
    if max_wait then whole("max_wait", max_wait, 0, LONGEST) end
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

function AdaptiveQueue:moved_on(s, now, generation, by, cost, nonce)
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
    local before = Aimd.present(law)
    if length > 0 and now + length > anchor then
        line, anchor, virtual, law = parted(self:stopped(line, anchor, virtual, law, now, length))
    end
    local after = Aimd.refused(law, now, now - age, anchor, self.least)
    return self:steered(line, anchor, virtual, law, after, now, before)
end

function AdaptiveQueue:succeeded(s, now, skew, count, age, nonce)
    whole("count", count, 0, 1e12)
    whole("age", age, 0, LONGEST)
    local line, anchor, virtual, law = self:known(s, now, nonce)
    local after = Aimd.succeeded(law, now, count, now - age)
    return self:steered(line, anchor, virtual, law, after, now, Aimd.present(law))
end

function AdaptiveQueue:stated(s, now, skew, share, age, nonce)
    whole("share", share, Tempo.LEAST, Tempo.FULL)
    whole("age", age, 0, LONGEST)
    local line, anchor, virtual, law = self:known(s, now, nonce)
    local after = Aimd.stated(law, share, now - age)
    return self:steered(line, anchor, virtual, law, after, now, Aimd.present(law))
end

-- inside

-- The line, the clock and the law, for a cold key as well.
function AdaptiveQueue:known(s, now, nonce)
    local known = self:remembered(s, now)
    if not known then return self.grid:cold(nonce), now, now, Aimd.cold(self.least) end
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
    -- What an idle queue could have sent at once, it may not send when the hold ends.
    local idle, idle_rest = self.grid:spread(self.grid.burst - 1)
    local stopped = {unpack(line)}
    stopped[1], stopped[2] = Exact.later(line[1], line[2], at + idle, idle_rest)
    return joined(stopped, now + length, at, law)
end

-- The state with the clock at the law's speed, from now on or from the end of the hold.
function AdaptiveQueue:steered(line, anchor, virtual, before, after, now, share)
    local runs, was = Aimd.present(after), Aimd.present(before)
    if runs ~= was then
        virtual = Tempo.shown(anchor, virtual, was, now)
        anchor = math.max(now, anchor)
    end
    local state = joined(line, anchor, virtual, after)
    return state, {share, runs, math.max(0, anchor - now)}, self:lasts(state, now), true
end

end
