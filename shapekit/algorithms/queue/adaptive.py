"""AdaptiveQueue: a LeakyQueue with an adaptive rate, which may change while calls wait.

It is a LeakyQueue at the highest rate, on a clock that runs at a share of the speed of real time (Tempo, in
aimd.py); the share is found from the outcomes of calls (AIMD, there too). Its grid, places and order are
those of the LeakyQueue, and so are cancel and settle. Only instants are translated: `now` to what the clock
shows, and a departure back to the first real instant at which the clock shows it.

So a lower rate delays all waiting calls, in order, and a higher one moves them forward. A waiting call goes
by the state of the key, which includes how the clock runs. A call that hears late of a higher rate leaves
late: in any span of real time, as many calls leave as the clock grants in a span that is longer by that
delay.

What was learned is kept for an hour after the last call would have left; then the key is cold.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias, cast

from shapekit.algorithms.base import Moment, Operation, slowed
from shapekit.algorithms.base import share_of as part_of
from shapekit.algorithms.queue import aimd
from shapekit.algorithms.queue.aimd import FULL, LEAST, Law, real, share_of, shown
from shapekit.algorithms.queue.queue import (
    LEAST_GRACE_US,
    SOON_US,
    Book,
    LeakyQueue,
    Line,
    marked,
    standing,
    stands_until,
    unused,
)
from shapekit.algorithms.queue.slots import (
    MOST_MOVES,
    NOTHING_GONE,
    NOTICE_US,
    Asked,
    Grant,
    Granted,
    Move,
    Moves,
)
from shapekit.algorithms.queue.wire import REFUSED, UNKNOWN, Late, Moved
from shapekit.decision import Decision
from shapekit.rate import SECOND_US, Rate

KEPT_US = 3_600 * SECOND_US
"""How long a learned rate is kept after the last call."""

Steered: TypeAlias = tuple[int, int, int, int, Book, int, int, Law]
"""tail (in 1/q µs), newest departure, generation, number, what was given back; the clock's anchor and what it
showed there; the law.
"""
Learned: TypeAlias = tuple[int, int, int]
"""The share before and after, and how long the key is held."""


class AdaptiveQueue(LeakyQueue):
    """The promises of one shaper with an adaptive rate: two bounds and a burst."""

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
        wished = limit * self.highest.period_us * FULL // (window_us * self.highest.limit)
        return max(LEAST, min(FULL, wished))

    def scaled(self, share: float | Fraction) -> AdaptiveQueue:
        """The same bounds at a share of their rates."""
        part = part_of(share)
        lowest, highest = slowed(self.lowest, part), slowed(self.highest, part)
        return AdaptiveQueue(lowest, highest, max(1, int(self.burst * part)))

    # to and from the twin

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        """What the Lua twin is constructed from."""
        return ["queue/adaptive", self.least, self.grid.twin(instants)]

    def inspect(self, line: Any) -> None:
        """Check a state that was read; raise if no such queue can have written it."""
        *numbers, book, anchor, virtual, law = line
        self.grid.inspect((*numbers, anchor, virtual, book, ()))
        aimd.inspect(law)

    def state_sent(self, line: Any) -> list[Any]:
        """A state in the form of the twin."""
        tail, newest, generation, number, book, anchor, virtual, law = line
        clock = (anchor, virtual, list(law))
        return [*divmod(tail, self.q), newest, generation, number, self._book_sent(book), *clock]

    def state_received(self, sent: Any) -> Any:
        """A state from the twin."""
        tail, rest, newest, generation, number, book, anchor, virtual, law = sent
        known = self._book_received(book)
        return tail * self.q + rest, newest, generation, number, known, anchor, virtual, tuple(law)

    def grant_sent(self, grant: Grant) -> list[Any]:
        """A grant in the form of the twin."""
        return super().grant_sent(grant._replace(receipts=()))

    def granted_received(self, sent: Any) -> Grant:
        """The answer to a reservation, from the twin."""
        if len(sent) == REFUSED:
            return super().granted_received(sent)
        wait, due, departs_at, *own, at, share = sent
        plain = super().granted_received([wait, due, 0, *own])
        return plain._replace(wait_us=wait, departs_at_us=departs_at, receipts=(at, share))

    # reserving

    def reserve(self, state: Any, now: int, asked: Asked, skew: int = 0) -> tuple[Any, Granted, int, bool]:
        """Take the earliest departure that is at most `max_wait` away, or refuse and change nothing."""
        cost, max_wait, nonce = asked
        line, anchor, virtual, law = self._known(state, now, nonce)
        share = aimd.present(law)
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
        return kept, (True, wait, now + wait, held, None, cost, *place), self._lasts(kept, now), True

    def confirm(self, state: Any, now: int, skew: int = 0) -> Any:
        """The state of the key: generation, 0, end of its hold, the time, its mark; then its clock."""
        known = self._remembered(state, now)
        if known is None:
            return UNKNOWN, 0, 0, now, 0
        _, _, generation, _, book, anchor, virtual, law = known
        return generation, 0, anchor, now, marked(book), virtual, aimd.present(law)

    def cancel(self, state: Any, now: int, grant: Grant, skew: int = 0) -> tuple[Any, bool, int, bool]:
        """Give back a place that was not used; too late or again, this does nothing."""
        known = self._remembered(state, now)
        if known is None:
            return state, False, 0, False
        line, anchor, virtual, law = _parted(known)
        at = shown(anchor, virtual, aimd.present(law), now)
        after, done, _, changed = self.grid.cancel(line, at, grant._replace(receipts=()))
        return self._changed(state, now, after, (anchor, virtual, law), done, is_new=changed)

    def settle(
        self, state: Any, now: int, asked: tuple[Grant, int, int], skew: int = 0
    ) -> tuple[Any, int, int, bool]:
        """Correct the cost of a call to what it turned out to be: charge the difference, or give it back."""
        grant, actual, nonce = asked
        line, anchor, virtual, law = self._known(state, now, nonce)
        at = shown(anchor, virtual, aimd.present(law), now)
        after, done, _, changed = self.grid.settle(line, at, (grant._replace(receipts=()), actual, nonce))
        return self._changed(state, now, after, (anchor, virtual, law), done, is_new=changed)

    # leaving late

    def _moved(self, state: Any, now: int, call: Late) -> tuple[Any, Moved]:
        generation, by, cost, nonce = call
        line, anchor, virtual, law = self._known(state, now, nonce)
        share = aimd.present(law)
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

    def _life(self, line: Any, now: int, skew: int) -> int:
        return self._lasts(line, now)

    # holding

    def hold(
        self, state: Any, now: int, length: int, nonce: int, skew: int = 0
    ) -> tuple[Any, int, int, bool]:
        """Hold departures until `now + length`; a longer hold stays. Returns the hold's length from now."""
        line, anchor, virtual, law = self._known(state, now, nonce)
        if now + length <= anchor:
            return state, anchor - now, 0, False
        held = self._stopped(line, anchor, virtual, law, now, length)
        return held, length, self._lasts(held, now), True

    def resume(self, state: Any, now: int, notice: int, skew: int = 0) -> tuple[Any, int, int, bool]:
        """End a hold `notice` from now, if it would last longer. Returns the hold's length from now."""
        known = self._remembered(state, now)
        if known is None:
            return state, 0, 0, False
        *line, book, anchor, virtual, law = known
        ends = max(now + notice, stands_until(book))
        if anchor <= ends:
            return state, max(0, anchor - now), 0, False
        freed = cast("Steered", (*line, book, ends, virtual, law))
        return freed, ends - now, self._lasts(freed, now), True

    def mark(
        self, state: Any, now: int, length: int, nonce: int, skew: int = 0
    ) -> tuple[Any, int, int, bool]:
        """Mark the key because a part of it is held; a longer mark stays. Returns the mark's length."""
        line, anchor, virtual, law = self._known(state, now, nonce)
        after, left, _, is_new = self.grid.mark(line, now, length, nonce)
        if not is_new:
            return state, left, 0, False
        kept = self._joined(after, anchor, virtual, law)
        return kept, left, self._lasts(kept, now), True

    # learning

    def throttled(
        self, state: Any, now: int, age: int, length: int, nonce: int, skew: int = 0
    ) -> tuple[Any, Learned, int, bool]:
        """A call that left `age` ago was refused: lower the rate, once per incident, and hold the key."""
        line, anchor, virtual, law = self._known(state, now, nonce)
        before = aimd.present(law)
        if length and now + length > anchor:
            line, anchor, virtual, law = _parted(self._stopped(line, anchor, virtual, law, now, length))
        after = aimd.refused(law, now, now - age, anchor, self.least)
        return self._steered(line, anchor, virtual, law, after, now, before)

    def succeeded(
        self, state: Any, now: int, count: int, age: int, nonce: int, skew: int = 0
    ) -> tuple[Any, Learned, int, bool]:
        """Calls succeeded, the first of which left `age` ago and `count` of which had to wait: raise the
        rate.
        """
        line, anchor, virtual, law = self._known(state, now, nonce)
        after = aimd.succeeded(law, now, count, now - age)
        return self._steered(line, anchor, virtual, law, after, now, aimd.present(law))

    def stated(
        self, state: Any, now: int, share: int, age: int, nonce: int, skew: int = 0
    ) -> tuple[Any, Learned, int, bool]:
        """The answer to a call that left `age` ago states the highest rate that the server allows."""
        line, anchor, virtual, law = self._known(state, now, nonce)
        after = aimd.stated(law, share, now - age)
        return self._steered(line, anchor, virtual, law, after, now, aimd.present(law))

    # looking

    def outlook(self, state: Any, now: int, calls: int, cost: int, skew: int) -> tuple[int, int]:
        """How long until the first and the last of `calls` more calls would leave, at the current rate."""
        line, anchor, virtual, law = self._known(state, now, 0)
        share = aimd.present(law)
        at = shown(anchor, virtual, share, now)
        waits = self.grid.outlook(line, at, calls, cost, 0)
        first, last = (max(now, real(anchor, virtual, share, at + wait)) - now for wait in waits)
        return first, last

    def waiting(self, state: Any, now: int) -> int | None:
        """How many slots are taken whose departure lies ahead."""
        known = self._remembered(state, now)
        if known is None:
            return 0
        line, anchor, virtual, law = _parted(known)
        at = shown(anchor, virtual, aimd.present(law), now)
        return self.grid.slots_ahead(line, at, held=anchor > now)

    def taken_since(self, line: Any, before: Any) -> int | None:
        """How many slots were taken since an earlier state of the key, also such as were given back."""
        return self.grid.taken_since(_parted(line)[0], before and _parted(before)[0])

    def decision(self, granted: Granted) -> Decision:
        """The answer to a reservation as a gate's Decision: what is used and left of the burst."""
        _, wait, departs_at, _, refusal, _, _, _, _, after, due, _, told_at, *_ = granted
        if refusal is not None or not told_at:
            return super().decision(granted)
        at, share = cast("tuple[int, int]", told_at[-2:])
        current = max(0, -((at * self.q - after) // self._width(1)))
        full = departs_at + real(0, 0, share, -(-after // self.q) - due)
        return Decision(True, self.burst, current, max(0, self.burst - current), full, 0, delay_us=wait)

    def adopt(self, state: Any, writer: Any, now: int, skew: int = 0) -> Any:
        """Adopt a state with other bounds: its rate, tail and holds continue, its grants become void."""
        if writer.is_held and not self.is_held:
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
        before = aimd.present(law)
        virtual = shown(anchor, virtual, before, now)
        if (self.is_set or writer.is_set) and tail > virtual * writer.q:
            numbers = (writer.p, writer.q, self.p, self.q, writer.burst, self.burst)
            move = Move(generation, virtual, *numbers, virtual)
            free, left, mark, changes, stands = book or ((), NOTHING_GONE, 0, (), 0)
            free, left = move.given_back(free, left)
            opened = (free, left, mark, (*changes, move)[-MOST_MOVES:], stands)
            placed = (move.place(tail), move.instant(newest), generation + 1, number, opened)
            return *placed, max(now, anchor), virtual, kept
        ends = real(state[5], state[6], before, -(-tail // writer.q))
        anchor = max(now, anchor)
        position = (shown(anchor, virtual, aimd.present(kept), ends) + 1) * self.q if ends > anchor else 0
        return position, virtual, generation + 1, 0, unused(book, ()), anchor, virtual, kept

    def _changes(self, state: Any) -> Moves:
        return tuple([Move(*change) for change in state[4][3]]) if state[4] else ()

    # inside

    def _known(self, state: Any, now: int, nonce: int) -> tuple[Line, int, int, Law]:
        """The line, the clock and the law, for a cold key as well."""
        known = self._remembered(state, now)
        if known is None:
            return (0, 0, nonce, 0, 0, 0, (), ()), now, now, aimd.cold(self.least)
        return _parted(known)

    def _remembered(self, state: Any, now: int) -> Steered | None:
        """The state, unless it is so old that it is forgotten."""
        # It lasts for as long after the anchor, which is where the rate has changed last.
        forgotten = state is None or (state[5] + KEPT_US <= now and self._lasts(state, now) == 0)
        return None if forgotten else state

    def _lasts(self, state: Steered, now: int) -> int:
        """How long from now on the state is kept."""
        tail, _, _, _, book, anchor, virtual, law = state
        until = real(anchor, virtual, aimd.present(law), -(-tail // self.q)) + KEPT_US
        if book and book[2] > until:
            until = book[2]
        return until - now if until > now else 0

    def _joined(self, line: Line, anchor: int, virtual: int, law: Law) -> Steered:
        tail, newest, generation, number, _, _, book, _ = line
        return tail, newest, generation, number, book, anchor, virtual, law

    def _changed(
        self, state: Any, now: int, line: Line | None, rest: tuple[int, int, Law], done: Any, *, is_new: bool
    ) -> tuple[Any, Any, int, bool]:
        if not is_new or line is None:
            return state, done, 0, False
        after = self._joined(line, *rest)
        return after, done, self._lasts(after, now), True

    def _stopped(self, line: Line, anchor: int, virtual: int, law: Law, now: int, length: int) -> Steered:
        at = shown(anchor, virtual, aimd.present(law), now)
        # What an idle queue could have sent at once, it may not send when the hold ends.
        idle = at * self.q + self.p * (self.burst - 1)
        return self._joined((max(line[0], idle), *line[1:]), now + length, at, law)

    def _steered(
        self, line: Line, anchor: int, virtual: int, before: Law, after: Law, now: int, share: int
    ) -> tuple[Any, Learned, int, bool]:
        """The state with the clock at the law's speed, from now on or from the end of the hold."""
        if aimd.present(after) != aimd.present(before):
            virtual = shown(anchor, virtual, aimd.present(before), now)
            anchor = max(now, anchor)
        state = self._joined(line, anchor, virtual, after)
        return state, (share, aimd.present(after), max(0, anchor - now)), self._lasts(state, now), True


def _parted(state: Steered) -> tuple[Line, int, int, Law]:
    tail, newest, generation, number, book, anchor, virtual, law = state
    return (tail, newest, generation, number, 0, 0, book, ()), anchor, virtual, law


class _Lesson(Operation):
    """An operation that learns from an answer; without a store to keep it, nothing is learned."""

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
