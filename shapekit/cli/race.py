"""Race: the same arrivals through several strategies, and the columns of time they are drawn in.

Contender: a strategy in the words of the command line, `gcra:10/s+20`, and how it fares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple

from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA, LeakyBucket, TokenBucket
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.quota.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.cli.arrivals import Arrivals
from shapekit.cli.group import Complaint
from shapekit.errors import ConfigError
from shapekit.rate import MAX_COUNT, SECOND_US, parse_rates
from shapekit.shaper import Shaper

__all__ = ["Columns", "Contender", "Race", "Run"]

_METERS: dict[str, Callable[[str, int | None], Algorithm[Any]]] = {
    "gcra": GCRA,
    "token": TokenBucket,
    "leaky": LeakyBucket,
}
_WINDOWS: dict[str, Callable[[str], Algorithm[Any]]] = {
    "fixed": FixedWindow,
    "sliding": SlidingWindow,
    "log": SlidingWindowLog,
    "quota": Quota,
}
NAMES = (*_METERS, *_WINDOWS, "shaper")
UNSHAPED = "unshaped"


class Run(NamedTuple):
    """What became of the calls."""

    name: str
    departures_us: list[int]
    """Of those that left, in order."""
    waits_us: list[int]
    """How long they waited, in the same order."""
    refused: int

    def worst(self, window_us: int) -> int:
        """The most departures in any window, which begins with one of them and ends before its end."""
        left, most = self.departures_us, 0
        first = 0
        for last, at in enumerate(left):
            while at - left[first] >= window_us:
                first += 1
            most = max(most, last - first + 1)
        return most

    def wait_us(self, share: float) -> int | None:
        """The wait that `share` of those that left did not exceed; None if nobody left."""
        waits = sorted(self.waits_us)
        return waits[max(0, ceil(share * len(waits)) - 1)] if waits else None


class Contender(NamedTuple):
    """A strategy under the name that it was given."""

    name: str
    program: Algorithm[Any] | LeakyQueue | None
    periods_us: tuple[int, ...]
    """The windows that its limits are told in; none for a calendar's."""

    @classmethod
    def parse(cls, text: str) -> Contender:
        """What `gcra:10/s+20` means."""
        kind, _, limit = text.partition(":")
        if kind not in NAMES:
            raise Complaint(f"strategy={text!r} is unknown; write NAME:RATE with one of {', '.join(NAMES)}")
        try:
            return cls._made(text, kind, limit)
        except ConfigError as error:
            raise error.within(f"strategy {text!r}:") from None

    @classmethod
    def _made(cls, text: str, kind: str, limit: str) -> Contender:
        if kind == "quota":
            return cls(text, Quota(limit), ())
        told, plus, more = limit.partition("+")
        burst = _burst(more) if plus else None
        rates = parse_rates(told)
        periods = tuple(rate.period_us for rate in rates)
        if kind == "shaper":
            shaper = Shaper(told, burst=burst)
            shaper.close()
            return cls(text, shaper.core.queue, periods)
        if len(rates) > 1:
            raise ConfigError("rate", told, "is several rates", f"give {kind} one; shaper takes several")
        if kind in _METERS:
            return cls(text, _METERS[kind](told, burst), periods)
        if burst is not None:
            raise ConfigError("burst", burst, f"means nothing to {kind}", "leave the + away")
        return cls(text, _WINDOWS[kind](told), periods)

    @classmethod
    def unshaped(cls) -> Contender:
        """Nobody in the way: every call leaves as it comes."""
        return cls(UNSHAPED, None, ())

    def run(self, arrivals_us: Sequence[int], max_wait_us: int | None) -> Run:
        """Let the calls come, on virtual time."""
        if self.program is None:
            return Run(self.name, list(arrivals_us), [0] * len(arrivals_us), 0)
        if isinstance(self.program, LeakyQueue):
            return self._delay(self.program, arrivals_us, max_wait_us)
        return self._admit(self.program, arrivals_us)

    def _admit(self, limit: Algorithm[Any], arrivals_us: Sequence[int]) -> Run:
        state: Any = None
        admitted = []
        for now in arrivals_us:
            after, decision, _, persist = limit.decide(state, now, 1)
            if persist:
                state = after
            if decision.allowed:
                admitted.append(now)
        return Run(self.name, admitted, [0] * len(admitted), len(arrivals_us) - len(admitted))

    def _delay(self, queue: LeakyQueue, arrivals_us: Sequence[int], max_wait_us: int | None) -> Run:
        state: Any = None
        left, waits = [], []
        for now in arrivals_us:
            after, granted, _, persist = queue.reserve(state, now, (1, max_wait_us, 0))
            if persist:
                state = after
            accepted, wait, departs_at, *_ = granted
            if accepted:
                left.append(departs_at)
                waits.append(wait)
        return Run(self.name, left, waits, len(arrivals_us) - len(left))


def _burst(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_COUNT))):
        raise ConfigError("burst", text, "is not a whole number", "end with it: gcra:10/s+20")
    return int(text)


_DAY_S = 86_400
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, _DAY_S)


class Columns(NamedTuple):
    """Equal pieces of time, as wide as people count."""

    width_us: int
    number: int

    @classmethod
    def over(cls, length_us: int, most: int) -> Columns:
        """At most `most` columns that hold `length_us`."""
        width = next(width for width in _widths() if width * most >= length_us)
        return cls(width, max(1, -(-length_us // width)))

    def counts(self, instants_us: Iterable[int], start_us: int) -> list[int]:
        """How many instants fall into each."""
        counts = [0] * self.number
        for at in instants_us:
            counts[(at - start_us) // self.width_us] += 1
        return counts


class Race(NamedTuple):
    """How each contender fared; the first is nobody, who lets every call leave."""

    arrivals: Arrivals
    runs: list[Run]
    windows_us: list[int]
    """What the limits are told in: how many leave in any such window is compared."""

    @classmethod
    def run(cls, arrivals: Arrivals, contenders: Sequence[Contender], max_wait_us: int | None) -> Race:
        """Let every contender meet the same arrivals."""
        runs = [entry.run(arrivals.instants_us, max_wait_us) for entry in (Contender.unshaped(), *contenders)]
        periods = {period for contender in contenders for period in contender.periods_us}
        return cls(arrivals, runs, sorted(periods) or [SECOND_US])

    @property
    def length_us(self) -> int:
        """From the first instant until every call has come and every one that was let has left."""
        last = max((run.departures_us[-1] for run in self.runs if run.departures_us), default=0)
        return max(self.arrivals.length_us, last - self.arrivals.start_us + 1)

    def counts(self, run: Run, columns: Columns) -> list[int]:
        """How many of a run left in each column."""
        return columns.counts(run.departures_us, self.arrivals.start_us)


def _widths() -> Iterator[int]:
    size = 1
    while size < SECOND_US:
        yield from (size, 2 * size, 5 * size)
        size *= 10
    yield from (seconds * SECOND_US for seconds in _STEPS_S)
    days = 2
    while True:
        yield days * _DAY_S * SECOND_US
        days *= 2
