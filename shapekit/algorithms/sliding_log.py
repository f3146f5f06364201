"""SlidingWindowLog: an exact log of the calls admitted in the last window."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms import rows
from shapekit.algorithms.base import (
    MOST_UNITS,
    Book,
    Decided,
    Outcome,
    Window,
    reborn,
    scaled_window,
    share_of,
    windowed,
)
from shapekit.algorithms.prospects import Rolling
from shapekit.decision import Decision, Receipt
from shapekit.errors import ConfigError
from shapekit.rate import Duration, Rate

__all__ = ["SlidingWindowLog"]

Log: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Times and running totals of the old entries, then of the recent ones."""

MAX_LIMIT = 10_000
_RECENT = 64
_EMPTY: Log = ((), (), (), ())
_new = tuple.__new__


class SlidingWindowLog(Window[Log]):
    """Never more than `limit` units in any half-open window, wherever it begins.

    Counts and waits are exact. In return the state grows with the limit, which is therefore at most 10,000:
    above that, use `SlidingWindow(…, conservative=True)`.

        >>> log = SlidingWindowLog("2/s")
        >>> state = log.check(log.check(None, 0, 1).state, 700_000, 1).state
        >>> log.check(state, 800_000, 1).decision.retry_after
        0.2

    An entry is an instant, and the number of units admitted up to and including it; it stops counting one
    window after its instant. Entries ascend, and are kept in an old and a recent part, so that a call copies
    only the short one. A call before the newest entry (time went back, or that entry is a future slot) waits
    for it.
    """

    kind: ClassVar[str] = "sliding_log"

    __slots__ = fields = ("limit", "window_us")

    limit: int
    """Units per window."""
    window_us: int
    """The length of a window, in microseconds."""

    def __init__(self, limit: int | str | Rate, window: Duration | None = None) -> None:
        units, window_us = windowed(limit, window)
        if units > MAX_LIMIT:
            fix = "use SlidingWindow(…, conservative=True)"
            raise ConfigError("limit", units, f"is more entries than a log may hold ({MAX_LIMIT})", fix)
        self._fill(limit=units, window_us=window_us)

    def booked(self, book: Book | None, now: int, cost: int, skew: int = 0) -> Decided[Book]:
        log, born, charged, settled = book or (_EMPTY, now, 0, ())
        gone, total, newest = self._standing(log, now)
        used = total - gone + cost
        limit = self.limit
        if used > limit or newest > now:
            return book, self._decision(book and log, now, cost), 0, False
        charged += cost
        if charged > MOST_UNITS:
            born, charged, settled = reborn(born, now, cost)
        ends = now + self.window_us
        receipt = (born, charged, cost, now)
        decision = _new(Decision, (True, limit, used, limit - used, ends, 0, None, receipt, 0))
        after = self._entered(log, now, gone, total + cost)
        return (after, born, charged, settled), decision, self.window_us, True

    def charge(self, state: Log | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[Log]:
        log = state or _EMPTY
        gone, total, _ = self._standing(log, due)
        used = total - gone + cost
        after = self._entered(log, due, self._standing(log, now)[0], total + cost)
        return after, self._admitted(used, due), due + self.window_us - now, True

    def earliest(self, state: Log | None, at: int, cost: int, skew: int = 0) -> int:
        if state is None or not state[2]:
            return at
        old_times, old_totals, times, totals = state
        first = max(at, times[-1])
        # The call fits when at most limit - cost units still count: find the last entry that has to expire.
        must_go = totals[-1] + cost - self.limit
        if must_go <= 0:
            return first
        if old_totals and old_totals[-1] >= must_go:
            return max(first, old_times[bisect_left(old_totals, must_go)] + self.window_us)
        return max(first, times[bisect_left(totals, must_go)] + self.window_us)

    def prospect(self, state: Log | None, cost: int, skew: int = 0) -> Rolling:
        old_times, old_totals, times, totals = state or _EMPTY
        leaves = [time + self.window_us for time in old_times + times]
        newest = times[-1] if times else 0
        return Rolling(self.limit, 1, self.window_us, newest, old_totals + totals, leaves)

    def together(self, charged_at: int) -> int:
        return charged_at

    def refund_many(
        self, state: Log | None, now: int, charges: Sequence[Sequence[int]], skew: int = 0
    ) -> Log | None:
        if state is None or not charges:
            return state
        back = {at: units for at, units in charges}  # noqa: C416 - type checkers refuse `dict(charges)`
        times, totals = state[0] + state[2], state[1] + state[3]
        first = bisect_left(times, charges[0][0])
        kept_times, kept_totals = [*times[:first]], [*totals[:first]]
        before = totals[first - 1] if first else 0
        gone = 0
        for time, total in zip(times[first:], totals[first:], strict=True):
            units = min(total - before, back.pop(time, 0))
            gone += units
            if units < total - before:
                kept_times.append(time)
                kept_totals.append(total - gone)
            before = total
        return ((), (), tuple(kept_times), tuple(kept_totals)) if gone else state

    def debit(
        self, state: Log | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[Log]:
        log = state or _EMPTY
        gone, total, newest = self._standing(log, now)
        at = max(now, newest)
        return self._settled(self._entered(log, at, gone, total + cost), now, receipt=at)

    def scaled(self, share: float | Fraction) -> Self:
        return type(self)(*scaled_window(self.limit, self.window_us, share_of(share)))

    def adopt(self, state: Log, writer: Any, now: int, skew: int = 0) -> Log:
        if isinstance(writer, SlidingWindowLog):
            return state
        entries = list(writer.entries(state, now))
        times, units = [at for at, _ in entries], [count for _, count in entries]
        return ((), (), tuple(times), tuple(accumulate(units)))

    def since(self, state: Log, at: int) -> int:
        times, totals = state[0] + state[2], state[1] + state[3]
        first = bisect_left(times, at)
        return (totals[-1] if totals else 0) - (totals[first - 1] if first else 0)

    def rescheduled(self, state: Log, newest: int, when: Callable[[int], int]) -> Log:
        old_times, old_totals, times, totals = state
        return tuple(map(when, old_times)), old_totals, tuple(map(when, times)), totals

    def entries(self, state: Log, now: int) -> Iterator[tuple[int, int]]:
        """When units were admitted and how many, oldest first, for a window of another kind."""
        before = 0
        for at, total in zip(state[0] + state[2], state[1] + state[3], strict=True):
            yield at, total - before
            before = total

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["sliding_log", self.limit, self.window_us, _RECENT]

    def state_sent(self, state: Log) -> Any:
        old_times, old_totals, times, totals = state
        entries = zip(old_times + times, old_totals + totals, strict=True)
        return [len(old_times), 0, rows.text(entries)]

    def state_received(self, sent: Any) -> Log:
        old, base, text = sent
        entries = rows.read(text, 2)
        times, totals = tuple([at for at, _ in entries]), tuple([total - base for _, total in entries])
        return times[:old], totals[:old], times[old:], totals[old:]

    def _full_after(self, charged_at: int) -> int:
        return charged_at + self.window_us

    def _standing(self, log: Log, now: int) -> tuple[int, int, int]:
        """The total that has left the window, the total so far, and the newest instant."""
        old_times, old_totals, times, totals = log
        if not times:
            return 0, 0, 0
        over = now - self.window_us
        if old_times and old_times[-1] > over:
            stale = bisect_right(old_times, over)
            gone = old_totals[stale - 1] if stale else 0
        else:
            stale = bisect_right(times, over)
            gone = totals[stale - 1] if stale else old_totals[-1] if old_totals else 0
        return gone, totals[-1], times[-1]

    def _entered(self, log: Log, at: int, gone: int, total: int) -> Log:
        """The log with one more entry, at or after its newest."""
        old_times, old_totals, times, totals = log
        if times and times[-1] == at:
            return old_times, old_totals, times, (*totals[:-1], total)
        if len(times) < _RECENT:
            return old_times, old_totals, times + (at,), totals + (total,)  # noqa: RUF005 - it is quicker
        # Merge the recent part into the old one, drop expired entries, and lower the totals by theirs.
        stale = bisect_right(old_totals, gone)
        kept = [old_total - gone for old_total in old_totals[stale:]]
        kept += [recent - gone for recent in totals if recent > gone]
        older = (*old_times[stale:], *times[len(times) - sum(recent > gone for recent in totals) :])
        return older, tuple(kept), (at,), (total - gone,)

    def _decision(self, state: Log | None, now: int, cost: int, skew: int = 0) -> Decision:
        if state is None:
            return Decision(True, self.limit, 0, self.limit, now, 0)
        gone, total, newest = self._standing(state, now)
        used = total - gone
        wait = self.earliest(state, now, cost) - now
        full = max(now + wait, newest + self.window_us) if used else now + wait
        remaining = 0 if newest > now else max(0, self.limit - used)
        return Decision(wait == 0, self.limit, used, remaining, full, wait)
