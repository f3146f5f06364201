"""AdaptiveQueue: a LeakyQueue with an adaptive rate, which may change while calls wait.

It is a LeakyQueue at the highest rate, on a clock that runs at a share of the speed of real time (Tempo); the
share is found from the outcomes of calls (AIMD). Grid, places and order, cancel and settle are those of the
LeakyQueue. Only instants are translated: `now` to what the clock shows, and a departure back to the first
real instant at which the clock shows it.

So a lower rate delays all waiting calls, in order, and a higher one moves them forward. A waiting call
computes its departure from the state of the key, which includes how the clock runs. A call that learns late
of a higher rate leaves late: in any span of real time, as many calls leave as the clock grants in a span that
is longer by that delay.

A learned rate is kept for an hour after the last call would have left; then the key is cold.

AIMD: lowers the rate when the server refuses, and raises it when calls succeed.

Rates are shares of the highest one (see Tempo). A refusal lowers the rate a little, marks the ceiling, and
starts an incident: refusals of calls that left before the lower rate took effect belong to the same incident,
and so do all refusals before the next success. Incidents in quick succession lower the rate by more each
time.

After that, the rate grows with `progress`: time spent succeeding. A call that had to wait for its slot adds
at most 0.2 s, so that slow rates grow per call and fast ones over time. The rate returns to the ceiling on a
curve that is steep at first and flat at the ceiling, bends up beyond it and, if no ceiling is met again,
climbs ever faster. Until a ceiling is known, the rate doubles about every two seconds.

Tempo: a clock that runs at a share of the speed of real time, and that a hold stops.

Its time is `v(t) = virtual + floor((t - anchor) * share / FULL)`, and before `anchor` it stays at `virtual`.
So a hold is an anchor in the future, and a new speed starts with a new anchor: at the instant of the change,
with the time that the clock showed then. If real time goes back, the clock does not go below that.

`real` is the inverse, rounded up: the first instant at which the clock shows a time or has passed it.

>>> HALF = (1_000, 5_000, FULL // 2)
>>> shown(*HALF, 1_400), real(*HALF, 5_200), shown(*HALF, 900), real(*HALF, 4_000)
(5200, 1400, 5000, 1000)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias, cast

from shapekit.algorithms.base import END_US, Moment, Operation, Stepped, slowed
from shapekit.algorithms.base import share_of as part_of
from shapekit.algorithms.queue.queue import (
    LEAST_GRACE_US,
    SOON_US,
    Book,
    LeakyQueue,
    Line,
    marked,
    opened_book,
    standing,
    stands_until,
    unused,
)
from shapekit.algorithms.queue.slots import MOST_MOVES, NOTICE_US, Grant, Granted, Move, Moves, Request
from shapekit.algorithms.queue.wire import REFUSED, UNKNOWN, Late, Moved
from shapekit.decision import Decision
from shapekit.errors import ConfigError
from shapekit.rate import SECOND_US, Rate, RateLike, Value

__all__ = ["Adaptive"]

FULL = 2**30
"""The share of a clock that runs as fast as real time."""
LEAST = 2**10
"""The smallest share: about a millionth."""


def shown(anchor: int, virtual: int, share: int, now: int) -> int:
    """What the clock shows at a real instant."""
    return virtual + (now - anchor) * share // FULL if now > anchor else virtual


def real(anchor: int, virtual: int, share: int, time: int) -> int:
    """The first real instant, not before the anchor, at which the clock shows `time` or more."""
    if time <= virtual:
        return anchor
    at = anchor - (virtual - time) * FULL // share
    return at if at < END_US else END_US


Law: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""share; ceiling (0 if unknown) and the share that the rate was lowered to; progress in µs; since when calls
must have left to count as new; when success was last reported; how many incidents in a row; the cap that the
server states, and when the call left whose response stated it.
"""

KEPT = (256, 236, 218, 192)
"""The part of the rate that is kept, in 1/256, by the number of incidents in a row: all, 92 %, 85 %, 75 %."""
IN_A_ROW = len(KEPT) - 1
"""The highest number of incidents in a row that makes a difference."""
NEARER = 246
"""The part of a ceiling that is kept, in 1/256, if it was met below the last one: 96 %."""
SOON_AGAIN_US = 6_000_000
"""An incident after less progress than this counts as in a row with the one before."""
WORTH_US = 200_000
"""The progress of one success."""
STRIDE_US = 2_000_000
"""The most progress per report."""
GRACE_US = 50_000
"""How long it takes until every call that is about to leave knows of a new rate."""
PLATEAU_US = 20_000_000
"""The progress after which the ceiling is reached again."""
STEPS = 128
"""The number of steps of the curve up to there."""
BEYOND = 20
"""How far above the ceiling the curve is after as much progress again, in 1/256: 8 %."""
CLIMB_US = 30_000_000
"""After that, and while there is no ceiling, the rate grows by `progress / this` of itself."""
START_US = 3_000_000


def cold_law(least: int) -> Law:
    """The law of a cold key."""
    return (least, 0, 0, 0, 0, 0, 0, FULL, 0)


def inspect_law(law: Any) -> None:
    """Raise if a law from a store cannot have been made by these functions."""
    share, ceiling, low, progress, since, told, streak, cap, cap_at = law
    sum((since, told, cap_at))
    is_sound = (
        LEAST <= min(share, cap) <= max(share, cap, ceiling, low) <= FULL
        and min(ceiling, low, progress, streak) >= 0
        and progress <= 4 * PLATEAU_US
        and streak <= IN_A_ROW
    )
    if not is_sound:
        raise ValueError("malformed law")


def present(law: Law) -> int:
    """The current share."""
    share, cap = law[0], law[7]
    return share if share < cap else cap


def after_refusal(law: Law, now: int, left: int, until: int, least: int) -> Law:
    """The law after a call that left at `left` was refused; no call leaves before `until`."""
    share, ceiling, low, progress, since, told, streak, cap, cap_at = law
    if left < since or (ceiling and not progress):
        return share, ceiling, low, progress, max(since, until), told, streak, cap, cap_at
    met = min(share, cap)
    if not ceiling:
        streak = IN_A_ROW  # the rate doubles within seconds, and is far above the ceiling when it is refused
    elif progress < SOON_AGAIN_US:
        streak = min(streak + 1, IN_A_ROW)
    else:
        streak = 1
    lowered = max(least, met * KEPT[streak] // KEPT[0])
    if ceiling and progress < PLATEAU_US:
        # Refused below the assumed ceiling: the real one is lower still.
        met = met * NEARER // KEPT[0]
    return lowered, max(lowered, met), lowered, 0, max(until, now + GRACE_US), now, streak, cap, cap_at


def after_success(law: Law, now: int, count: int, left: int) -> Law:
    """The law after successes: `count` calls had to wait, others may not have; the first left at `left`."""
    share, ceiling, low, progress, since, told, streak, cap, cap_at = law
    if left < since:
        return law
    gain = max(0, min(now - told, count * WORTH_US, STRIDE_US))
    told = max(told, now)
    progress = max(1, min(progress + gain, 4 * PLATEAU_US))
    if not ceiling:
        grown = share + share * gain // START_US
    elif progress < PLATEAU_US:
        left_over = (PLATEAU_US - progress) * STEPS // PLATEAU_US
        grown = ceiling - (ceiling - low) * left_over**3 // STEPS**3
    elif progress < 2 * PLATEAU_US:
        beyond = (progress - PLATEAU_US) * STEPS // PLATEAU_US
        grown = ceiling + ceiling * BEYOND // KEPT[0] * beyond**3 // STEPS**3
    else:
        grown = share + share * gain // CLIMB_US
    share = max(share, min(grown, cap))
    return share, ceiling, low, progress, since, told, streak, cap, cap_at


def after_statement(law: Law, cap: int, left: int) -> Law:
    """The law after the response to a call that left at `left` stated the highest rate that is allowed."""
    if left < law[8]:
        return law
    return (*law[:7], cap, left)


class Adaptive(Value):
    """The bounds of an adaptive rate: a shaper starts at `min` and finds the rate in between.

        >>> from shapekit import Adaptive, Shaper
        >>> shaper = Shaper(adaptive=Adaptive(min="1/s", max="50/s"))
        >>> round(shaper.adaptive.rate(), 6)
        1.0

    The rate never exceeds `max`, and falls below `min` only if the server itself states less.
    """

    __slots__ = fields = ("min", "max")

    min: Rate
    """The rate at the start, and the lowest that shapekit sets by itself."""
    max: Rate
    """The rate that is never exceeded."""

    def __init__(self, min: RateLike, max: RateLike) -> None:  # noqa: A002 - the names that users write
        lowest, highest = _bound("min", min), _bound("max", max)
        if share_of(lowest, highest) >= 1:
            raise ConfigError("min", str(lowest), f"is not below max={str(highest)!r}", "leave room between")
        if share_of(lowest, highest) * (FULL // LEAST) < 1:
            fix = "raise it"
            raise ConfigError("min", str(lowest), f"is less than a millionth of max={str(highest)!r}", fix)
        self._fill(min=lowest, max=highest)

    def __repr__(self) -> str:
        return f"Adaptive(min={str(self.min)!r}, max={str(self.max)!r})"


def share_of(rate: Rate, highest: Rate) -> Fraction:
    """A rate as a part of the highest one."""
    return Fraction(rate.limit * highest.period_us, rate.period_us * highest.limit)


def _bound(field: str, rate: RateLike) -> Rate:
    parsed = Rate.parse(rate, field)
    if parsed.burst is not None:
        raise ConfigError(field, str(parsed), "has a burst", "pass burst= beside adaptive=")
    return parsed


KEPT_US = 3_600 * SECOND_US
"""How long a learned rate is kept after the last call."""

Steered: TypeAlias = tuple[int, int, int, int, Book, int, int, Law]
"""tail (in 1/q µs), newest departure, generation, number, book; the clock's anchor, and what the clock showed
there; the law.
"""
Learned: TypeAlias = tuple[int, int, int]
"""The share before and after, and how long the key is held."""


class AdaptiveQueue(LeakyQueue):
    """The limits of one shaper with an adaptive rate: two bounds and a burst."""

    kind: ClassVar[str] = "adaptive_queue"
    adapts: ClassVar[bool] = True

    fields = ("lowest", "highest", "burst")
    __slots__ = ("grid", "highest", "least", "lowest")

    lowest: Rate
    highest: Rate
    grid: LeakyQueue
    """The queue at the highest rate, on the clock's time."""
    least: int
    """The lowest rate as a share of the highest, rounded up."""

    def __init__(self, lowest: Rate, highest: Rate, burst: int | None) -> None:
        super().__init__((highest,), burst, "smooth", ())
        least = share_of(lowest, highest) * FULL
        self._fill(
            lowest=lowest,
            highest=highest,
            grid=LeakyQueue((highest,), burst, "smooth", ()),
            least=-(-least.numerator // least.denominator),
        )

    def per_second(self, share: int) -> float:
        """A share as a rate, in calls per second."""
        return self.highest.per_second * share / FULL

    def share(self, limit: int, window_us: int) -> int:
        """A rate as a share, rounded down: at most the highest rate, and at least a millionth of it."""
        share = limit * self.highest.period_us * FULL // (window_us * self.highest.limit)
        return max(LEAST, min(FULL, share))

    def scaled(self, share: float | Fraction) -> AdaptiveQueue:
        """The same bounds at a share of their rates."""
        part = part_of(share)
        lowest, highest = slowed(self.lowest, part), slowed(self.highest, part)
        return AdaptiveQueue(lowest, highest, max(1, int(self.burst * part)))

    # to and from the twin

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["queue/adaptive", self.least, self.grid.twin(instants)]

    def inspect(self, line: Any) -> None:
        *numbers, book, anchor, virtual, law = line
        self.grid.inspect((*numbers, anchor, virtual, book, ()))
        inspect_law(law)

    def state_sent(self, line: Any) -> list[Any]:
        tail, newest, generation, number, book, anchor, virtual, law = line
        clock = (anchor, virtual, list(law))
        return [*divmod(tail, self.q), newest, generation, number, self._book_sent(book), *clock]

    def state_received(self, sent: Any) -> Any:
        tail, rest, newest, generation, number, book, anchor, virtual, law = sent
        known = self._book_received(book)
        return tail * self.q + rest, newest, generation, number, known, anchor, virtual, tuple(law)

    def grant_sent(self, grant: Grant) -> list[Any]:
        return super().grant_sent(grant._replace(receipts=()))

    def granted_received(self, sent: Any) -> Grant:
        if len(sent) == REFUSED:
            return super().granted_received(sent)
        wait, due, departs_at, *own, at, share = sent
        plain = super().granted_received([wait, due, 0, *own])
        return plain._replace(wait_us=wait, departs_at_us=departs_at, receipts=(at, share))

    # reserving

    def reserve(self, state: Any, now: int, request: Request, skew: int = 0) -> Stepped[Any, Granted]:
        cost, max_wait, nonce = request
        line, anchor, virtual, law = self._known(state, now, nonce)
        share = present(law)
        at = shown(anchor, virtual, share, now)
        after, granted, _, _ = self.grid.reserve(line, at, (cost, None, nonce))
        _, _, slot_at, _, _, _, generation, number, start, end, due, undo, *_ = granted
        wait = real(anchor, virtual, share, slot_at) - now
        if wait < 0:
            wait = 0
        if max_wait is not None and wait > max_wait:
            full = real(anchor, virtual, share, -(-line[0] // self.q))
            told = Decision(False, self.burst, self.burst, 0, full, wait - max_wait)
            held = max(anchor, marked(line[6])) > now
            return state, Grant.refused(wait, now, held=held, told=told, cost=cost), 0, False
        assert after is not None  # noqa: S101 - it was admitted
        kept = self._joined(after, anchor, virtual, law)
        held, told_at = wait > 0 or marked(line[6]) > now, (at, share)
        place = (generation, number, start, end, due, undo, told_at, None)
        return kept, (True, wait, now + wait, held, None, cost, *place), self._life(kept, now), True

    def confirm(self, state: Any, now: int, skew: int = 0) -> Any:
        """The state of the key: generation, 0, end of its hold, the time, its mark; then its clock."""
        known = self._remembered(state, now)
        if known is None:
            return UNKNOWN, 0, 0, now, 0
        _, _, generation, _, book, anchor, virtual, law = known
        return generation, 0, anchor, now, marked(book), virtual, present(law)

    def cancel(self, state: Any, now: int, grant: Grant, skew: int = 0) -> Stepped[Any, bool]:
        known = self._remembered(state, now)
        if known is None:
            return state, False, 0, False
        line, anchor, virtual, law = _parted(known)
        at = shown(anchor, virtual, present(law), now)
        after, done, _, changed = self.grid.cancel(line, at, grant._replace(receipts=()))
        return self._changed(state, now, after, (anchor, virtual, law), done, is_new=changed)

    def settle(
        self, state: Any, now: int, settlement: tuple[Grant, int, int], skew: int = 0
    ) -> Stepped[Any, int]:
        grant, actual, nonce = settlement
        line, anchor, virtual, law = self._known(state, now, nonce)
        at = shown(anchor, virtual, present(law), now)
        after, done, _, changed = self.grid.settle(line, at, (grant._replace(receipts=()), actual, nonce))
        return self._changed(state, now, after, (anchor, virtual, law), done, is_new=changed)

    # leaving late

    def _moved(self, state: Any, now: int, call: Late, skew: int) -> tuple[Any, Moved]:
        generation, by, cost, nonce = call
        line, anchor, virtual, law = self._known(state, now, nonce)
        share = present(law)
        at, free_at = shown(anchor, virtual, share, now), max(now, anchor)
        grace = 0 if anchor > now else max(LEAST_GRACE_US * share // FULL, self.slot_us * 3 // 4)
        is_late = line[2] != generation or at - by > grace
        if not is_late or free_at > now + SOON_US:
            return None, (free_at, UNKNOWN)
        leaves_at = free_at
        if anchor <= now:
            leaves_at = max(now, real(anchor, virtual, share, self.grid.next_slot(line[0], at)))
        ends = leaves_at + real(0, 0, share, -(-self._width(cost) // self.q))
        after = self._joined(line, ends, at, law)
        if ends > now + SOON_US:
            after = (*after[:4], standing(after[4], (), ends), *after[5:])
        return after, (leaves_at, ends)

    # holding

    def hold(self, state: Any, now: int, length: int, nonce: int, skew: int = 0) -> Stepped[Any, int]:
        line, anchor, virtual, law = self._known(state, now, nonce)
        if now + length <= anchor:
            return state, anchor - now, 0, False
        held = self._stopped(line, anchor, virtual, law, now, length)
        return held, length, self._life(held, now), True

    def resume(
        self, state: Any, now: int, notice: int, skew: int = 0, *, whatever_fits: bool = False
    ) -> Stepped[Any, int]:
        known = self._remembered(state, now)
        if known is None:
            return state, 0, 0, False
        *line, book, anchor, virtual, law = known
        ends = max(now + notice, stands_until(book))
        if anchor <= ends:
            return state, max(0, anchor - now), 0, False
        freed = cast("Steered", (*line, book, ends, virtual, law))
        return freed, ends - now, self._life(freed, now), True

    def mark(self, state: Any, now: int, length: int, nonce: int, skew: int = 0) -> Stepped[Any, int]:
        line, anchor, virtual, law = self._known(state, now, nonce)
        after, left, _, is_new = self.grid.mark(line, now, length, nonce)
        if not is_new:
            return state, left, 0, False
        kept = self._joined(after, anchor, virtual, law)
        return kept, left, self._life(kept, now), True

    # learning

    def throttled(
        self, state: Any, now: int, age: int, length: int, nonce: int, skew: int = 0
    ) -> Stepped[Any, Learned]:
        """A call that left `age` ago was refused: lower the rate, once per incident, and hold the key."""
        line, anchor, virtual, law = self._known(state, now, nonce)
        if length and now + length > anchor:
            line, anchor, virtual, law = _parted(self._stopped(line, anchor, virtual, law, now, length))
        after = after_refusal(law, now, now - age, anchor, self.least)
        return self._steered(line, anchor, virtual, law, after, now)

    def succeeded(
        self, state: Any, now: int, count: int, age: int, nonce: int, skew: int = 0
    ) -> Stepped[Any, Learned]:
        """Calls succeeded, the first of which left `age` ago and `count` of which had to wait: raise the
        rate.
        """
        line, anchor, virtual, law = self._known(state, now, nonce)
        after = after_success(law, now, count, now - age)
        return self._steered(line, anchor, virtual, law, after, now)

    def stated(
        self, state: Any, now: int, share: int, age: int, nonce: int, skew: int = 0
    ) -> Stepped[Any, Learned]:
        """The answer to a call that left `age` ago states the highest rate that the server allows."""
        line, anchor, virtual, law = self._known(state, now, nonce)
        after = after_statement(law, share, now - age)
        return self._steered(line, anchor, virtual, law, after, now)

    # looking

    def outlook(self, state: Any, now: int, calls: int, cost: int, skew: int) -> tuple[int, int]:
        line, anchor, virtual, law = self._known(state, now, 0)
        share = present(law)
        at = shown(anchor, virtual, share, now)
        waits = self.grid.outlook(line, at, calls, cost, 0)
        first, last = (max(now, real(anchor, virtual, share, at + wait)) - now for wait in waits)
        return first, last

    def waiting(self, state: Any, now: int) -> int | None:
        known = self._remembered(state, now)
        if known is None:
            return 0
        line, anchor, virtual, law = _parted(known)
        at = shown(anchor, virtual, present(law), now)
        return self.grid.slots_ahead(line, at, held=anchor > now)

    def taken_since(self, line: Any, before: Any) -> int | None:
        return self.grid.taken_since(_parted(line)[0], before and _parted(before)[0])

    def decision(self, granted: Granted) -> Decision:
        _, wait, departs_at, _, refusal, _, _, _, _, end, due, undo, told_at, *_ = granted
        if refusal is not None or not told_at:
            return super().decision(granted)
        at, share = cast("tuple[int, int]", told_at[-2:])
        after = max(end, undo[0])
        current = max(0, -((at * self.q - after) // self._width(1)))
        full = departs_at + real(0, 0, share, -(-after // self.q) - due)
        return Decision(True, self.burst, current, max(0, self.burst - current), full, 0, delay_us=wait)

    def adopt(self, state: Any, writer: Any, now: int, skew: int = 0) -> Any:
        """Adopt a state with other bounds: its rate, tail and holds continue, its grants become void."""
        if self.held_until_us < writer.held_until_us:
            state = writer.resume(state, now, NOTICE_US)[0]
        tail, newest, generation, number, book, anchor, virtual, law = state
        share, ceiling, low, *rest, cap, cap_at = law

        def moved(part: int) -> int:
            return self.share(writer.highest.limit * part, writer.highest.period_us * FULL)

        kept = (
            max(self.least, moved(share)),
            ceiling and moved(ceiling),
            low and moved(low),
            *rest,
            FULL if cap == FULL else moved(cap),
            cap_at,
        )
        before = present(law)
        virtual = shown(anchor, virtual, before, now)
        if (self.is_set or writer.is_set) and tail > virtual * writer.q:
            numbers = (writer.p, writer.q, self.p, self.q, writer.burst, self.burst)
            move = Move(generation, virtual, *numbers, virtual)
            free, left, mark, changes, stands, pauses = opened_book(book, ())
            free, left = move.given_back(free, left)
            opened = (free, left, mark, (*changes, move)[-MOST_MOVES:], stands, pauses)
            placed = (move.place(tail), move.instant(newest), generation + 1, number, opened)
            return *placed, max(now, anchor), virtual, kept
        ends = real(state[5], state[6], before, -(-tail // writer.q))
        anchor = max(now, anchor)
        position = (shown(anchor, virtual, present(kept), ends) + 1) * self.q if ends > anchor else 0
        return position, virtual, generation + 1, 0, unused(book, ()), anchor, virtual, kept

    def _changes(self, state: Any) -> Moves:
        return tuple([Move(*change) for change in state[4][3]]) if state[4] else ()

    # inside

    def _known(self, state: Any, now: int, nonce: int) -> tuple[Line, int, int, Law]:
        """The line, the clock and the law, for a cold key as well."""
        known = self._remembered(state, now)
        if known is None:
            return (0, 0, nonce, 0, 0, 0, (), ()), now, now, cold_law(self.least)
        return _parted(known)

    def _remembered(self, state: Any, now: int) -> Steered | None:
        """The state, unless it is so old that it is forgotten."""
        # It lasts for as long after the anchor, which is where the rate has changed last.
        forgotten = state is None or (state[5] + KEPT_US <= now and self._life(state, now) == 0)
        return None if forgotten else state

    def _life(self, line: Any, now: int, skew: int = 0) -> int:
        """How long from now on the state is kept."""
        tail, _, _, _, book, anchor, virtual, law = line
        until = real(anchor, virtual, present(law), -(-tail // self.q)) + KEPT_US
        if book and book[2] > until:
            until = book[2]
        return until - now if until > now else 0

    def _joined(self, line: Line, anchor: int, virtual: int, law: Law) -> Steered:
        tail, newest, generation, number, _, _, book, _ = line
        return tail, newest, generation, number, book, anchor, virtual, law

    def _changed(
        self, state: Any, now: int, line: Line | None, rest: tuple[int, int, Law], done: Any, *, is_new: bool
    ) -> Stepped[Any, Any]:
        if not is_new or line is None:
            return state, done, 0, False
        after = self._joined(line, *rest)
        return after, done, self._life(after, now), True

    def _stopped(self, line: Line, anchor: int, virtual: int, law: Law, now: int, length: int) -> Steered:
        at = shown(anchor, virtual, present(law), now)
        return self._joined((max(line[0], self._idle(at)), *line[1:]), now + length, at, law)

    def _steered(
        self, line: Line, anchor: int, virtual: int, before: Law, after: Law, now: int
    ) -> Stepped[Any, Learned]:
        """The state with the clock at the law's speed, from now on or from the end of the hold."""
        was, runs = present(before), present(after)
        if runs != was:
            virtual = shown(anchor, virtual, was, now)
            anchor = max(now, anchor)
        state = self._joined(line, anchor, virtual, after)
        return state, (was, runs, max(0, anchor - now)), self._life(state, now), True


def _parted(state: Steered) -> tuple[Line, int, int, Law]:
    tail, newest, generation, number, book, anchor, virtual, law = state
    return (tail, newest, generation, number, 0, 0, book, ()), anchor, virtual, law


class _Lesson(Operation):
    """An operation that learns from a response; while the store is gone, nothing is learned."""

    def __init__(self, name: str) -> None:
        self.name = name

    def opened(self, program: Any, at: Moment, args: tuple[Any, ...]) -> Learned:
        return 0, 0, 0

    closed = opened

    def given(self, program: AdaptiveQueue, part: AdaptiveQueue, answer: Learned) -> Learned:
        """A locally learned rate, as shares of the highest rate of the full queue."""
        before, after, held = answer
        share = part.highest.per_second / program.highest.per_second
        return round(before * share), round(after * share), held


THROTTLED, SUCCEEDED, STATED = _Lesson("throttled"), _Lesson("succeeded"), _Lesson("stated")
