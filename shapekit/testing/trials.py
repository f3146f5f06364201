"""Trials: the programs that a store is tried with, small enough that a few calls exhaust each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from shapekit.algorithms.adaptive_queue import AdaptiveQueue
from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.compose import all_of, any_of, first_of
from shapekit.algorithms.composite import Composite
from shapekit.algorithms.concurrency import Concurrency
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA
from shapekit.algorithms.leaky_bucket import LeakyBucket
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.algorithms.meter import Meter
from shapekit.algorithms.period_counter import PeriodCounter
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.algorithms.spread_counter import SpreadCounter
from shapekit.algorithms.token_bucket import TokenBucket
from shapekit.rate import SECOND_US, Rate, RateLike, parse_rates

_DAY_US = 86_400 * SECOND_US


class Trial(NamedTuple):
    """A program, and the span of time on which it changes: what its timelines move in."""

    program: Any
    scale_us: int
    apart: bool = False
    """Whether each part of the composite gets a key of its own."""

    @property
    def is_queue(self) -> bool:
        """Whether it delays."""
        return isinstance(self.program, LeakyQueue)

    @property
    def is_adaptive(self) -> bool:
        """Whether its rate is found."""
        return isinstance(self.program, AdaptiveQueue)

    @property
    def is_room(self) -> bool:
        """Whether it counts calls in flight."""
        return isinstance(self.program, Concurrency)


ODD_RATES = (
    (Rate.of(7, SECOND_US), 3),
    (Rate.of(3, 10 * SECOND_US), 3),
    (Rate.of(10, SECOND_US), 1),
    (Rate.of(62, SECOND_US), 62),
    (Rate.of(1, 999_983), 2),
    (Rate.of(5, 3), 4),
    (Rate.of(1_000_000_007, 86_399_999_983), 1_000_000_007),
    (Rate.of(1_000_003, 3_600_000_001), 5),
)
"""With the burst that a meter of this rate gets."""


def meters(kind: Callable[[RateLike, int], Meter]) -> list[Trial]:
    """A meter of each odd rate."""
    return [_measured(kind(rate, burst)) for rate, burst in ODD_RATES]


def windows(kind: Callable[[int, timedelta], Any]) -> list[Trial]:
    """A window of each kind of length, whole and odd."""
    sizes = ((5, SECOND_US), (3, 10 * SECOND_US), (7, 999_983), (2, 60 * SECOND_US), (9, 13))
    return [_measured(kind(limit, timedelta(microseconds=span))) for limit, span in sizes]


def sliding_windows() -> list[Trial]:
    """Rings of several sizes, with the oldest weighed and whole."""
    return [
        *windows(SlidingWindow),
        _measured(SlidingWindow("6/s", buckets=1)),
        _measured(SlidingWindow("6/s", buckets=3, conservative=True)),
        _measured(SlidingWindow(1_000, timedelta(microseconds=999_983), buckets=7)),
    ]


def logs() -> list[Trial]:
    """Logs, one of them long enough to be kept in two halves."""
    return [*windows(SlidingWindowLog), _measured(SlidingWindowLog("200/s"))]


def quotas() -> list[Trial]:
    """A quota of each cadence."""
    return [
        _measured(quota)
        for quota in (
            Quota("5/month"),
            Quota("4/month", anchor_day=31, offset_minutes=-330),
            Quota("3/month", tz="America/New_York", anchor_day=15),
            Quota("5/week"),
            Quota("4/week", week_start="sunday", tz="Europe/Berlin"),
            Quota("5/day"),
            Quota("4/day", tz="Europe/Berlin"),
            Quota("3/day", tz="Australia/Lord_Howe"),
            Quota("4/day", offset_minutes=840),
            Quota("5/fixed:30d"),
            Quota("3/fixed:999983us", offset_minutes=7),
            Quota("4/rolling:10s"),
            Quota("1001/rolling:1h"),
            Quota("5/day", spread=True),
            Quota("4/month", tz="America/New_York", anchor_day=31, spread=True),
            Quota("9/fixed:999983us", offset_minutes=7, spread=True),
            Quota("100_000_000_000/fixed:71d", spread=True),
        )
    ]


def composites(combine: Callable[..., Composite]) -> list[Trial]:
    """Composites of each kind of part, flat and nested; with one key, and with a key for each part."""
    whole = (
        combine(a=GCRA("7/s", 3), b=FixedWindow("5/s")),
        combine(a=SlidingWindow("5/s"), b=SlidingWindowLog("4/s"), c=LeakyBucket("3/s", 6)),
        combine(a=Quota("5/day", tz="Europe/Berlin"), b=TokenBucket("2/min", 3)),
        combine(a=any_of(x=GCRA("3/s", 2), y=FixedWindow("2/s")), b=GCRA("5/s", 4)),
        combine(a=Quota("7/day", tz="Europe/Berlin", spread=True), b=GCRA("5/s", 2)),
        combine(a=all_of(x=GCRA("3/s", 4), y=Quota("9/day")), b=first_of(p=GCRA("1/s", 1), q=GCRA("2/s", 3))),
    )
    flat = [_measured(program) for program in whole]
    return [*flat, *(trial._replace(apart=True) for trial in flat)]


def queues() -> list[Trial]:
    """Queues: plain, with a burst, of several rates, as fast as the windows allow, under gates."""
    return [
        _queue("10/s"),
        _queue("7/s"),
        _queue("3 per 10 s"),
        _queue("10/s burst 4"),
        _queue(Rate.of(1_000_003, 3_600_000_001), burst=3),
        _queue("10/s; 15/min"),
        _queue("5/s burst 2; 8 per 10 s; 20/min burst 9"),
        _queue("4/s", pace="burst"),
        _queue("4/s; 9 per 10 s", pace="burst"),
        _queue("10/s", headroom=0.02),
        _queue("5/s", gates=(GCRA("3/s", 2), FixedWindow("4/s"))),
        _queue("5/s", gates=(Quota("6/day", tz="Europe/Berlin"), SlidingWindow("5/s", buckets=4))),
        _queue("5/s", gates=(any_of(a=GCRA("1/s", 2), b=SlidingWindowLog("3/s")),)),
        _queue(None, gates=(GCRA("3/s", 2), Quota("9/rolling:10s"))),
        _queue("5/s", gates=(Quota("20/fixed:10s", spread=True),)),
        _queue(None, gates=(Quota("6/day", tz="Europe/Berlin", spread=True), SlidingWindowLog("3/s"))),
    ]


def rooms() -> list[Trial]:
    """Rooms with a seat, with some, and with more than ever are asked for; short leases and long ones."""
    return [
        _room(Concurrency(limit, lease)) for limit, lease in ((1, "1s"), (2, "10s"), (3, "1m"), (50, "1h"))
    ]


def adaptive_queues() -> list[Trial]:
    """Queues whose rate is found: between close bounds and far ones, with odd numbers, with a burst."""
    return [
        _adaptive("1/s", "50/s"),
        _adaptive("2/s", "3/s", 4),
        _adaptive(Rate.of(3, 7_000_003), Rate.of(1_000_003, 3_600_000_001)),
        _adaptive(Rate.of(1, 3_600 * SECOND_US), "100/s", 3)._replace(scale_us=1_300 * SECOND_US),
    ]


GROUPS: dict[str, Callable[[], list[Trial]]] = {
    "gcra": lambda: meters(GCRA),
    "token_bucket": lambda: meters(TokenBucket),
    "leaky_bucket": lambda: meters(LeakyBucket),
    "fixed_window": lambda: windows(FixedWindow),
    "sliding_window": sliding_windows,
    "sliding_log": logs,
    "quota": quotas,
    "all_of": lambda: composites(all_of),
    "any_of": lambda: composites(any_of),
    "first_of": lambda: composites(first_of),
    "leaky_queue": queues,
    "adaptive_queue": adaptive_queues,
    "concurrency": rooms,
}
"""The trials of each algorithm, by its kind."""


def changes() -> list[tuple[Trial, Trial]]:
    """Pairs of one kind with other numbers: the second finds what the first has left."""
    before_and_after: list[tuple[Algorithm[Any], Algorithm[Any]]] = [
        (GCRA("7/s", 3), GCRA("3 per 10 s", 5)),
        (GCRA("10/s", 6), GCRA("10/s", 2)),
        (TokenBucket("5/s", 5), TokenBucket("1000003/h", 4)),
        (LeakyBucket("5/s", 5), LeakyBucket("7/s", 3)),
        (FixedWindow("5/s"), FixedWindow("4 per 3 s")),
        (SlidingWindow("5/s"), SlidingWindow("8/s", buckets=3, conservative=True)),
        (SlidingWindowLog("5/s"), SlidingWindowLog("3 per 2 s")),
        (Quota("5/day"), Quota("7/month")),
        (Quota("6/month"), Quota("4/day", tz="Europe/Berlin")),
        (Quota("5/rolling:10s"), Quota("4/rolling:15s")),
        (Quota("5/day"), Quota("9/day", spread=True)),
        (Quota("5/day", spread=True), Quota("5/day")),
        (Quota("5/day", spread=True), Quota("9/day", spread=True)),
        (Quota("9/month", spread=True), Quota("7/day", tz="Europe/Berlin", spread=True)),
        (all_of(a=GCRA("7/s", 3), b=FixedWindow("5/s")), all_of(b=FixedWindow("4/s"), a=GCRA("3/s", 2))),
        (any_of(a=GCRA("7/s", 3), b=FixedWindow("5/s")), any_of(b=FixedWindow("5/s"), c=GCRA("3/s", 2))),
        (first_of(a=GCRA("7/s", 3), b=Quota("5/day")), first_of(a=GCRA("9/s", 2), b=Quota("4/day"))),
    ]
    pairs = [(_measured(before), _measured(after)) for before, after in before_and_after]
    apart = [
        (before._replace(apart=True), after._replace(apart=True))
        for before, after in pairs
        if isinstance(before.program, Composite) and before.program.names == after.program.names
    ]
    return [
        *pairs,
        *apart,
        (_queue("7/s"), _queue("3/s burst 2")),
        (_adaptive("1/s", "50/s"), _adaptive("2/s", Rate.of(62, 999_983), 3)),
        (_queue("10/s; 15/min"), _queue("8/s; 12/min; 30/h")),
        (_queue("5/s", gates=(GCRA("3/s", 2),)), _queue("5/s", gates=(GCRA("2/s", 4), Quota("9/day")))),
        (_room(Concurrency(3, "10s")), _room(Concurrency(2, "4s"))),
        (_room(Concurrency(1, "2s")), _room(Concurrency(4, "30s"))),
    ]


def limited(units: int) -> dict[str, Any]:
    """A strategy of each kind of which a cold key admits exactly `units` at one instant."""
    return {
        "gcra": GCRA("7/s", units),
        "token_bucket": TokenBucket("7/s", units),
        "leaky_bucket": LeakyBucket("7/s", units),
        "fixed_window": FixedWindow(units, "1m"),
        "sliding_window": SlidingWindow(units, "1m"),
        "sliding_log": SlidingWindowLog(units, "1m"),
        "quota": Quota(units, "day"),
        "all_of": all_of(a=GCRA("7/s", units), b=FixedWindow(units + 1, "1m")),
        "any_of": any_of(a=GCRA("7/s", units), b=FixedWindow(units - 1, "1m")),
        "first_of": first_of(a=GCRA("7/s", units // 2), b=FixedWindow(units - units // 2, "1m")),
    }


def queue(
    rate: RateLike | None,
    *,
    burst: int | None = None,
    pace: str = "smooth",
    gates: tuple[Algorithm[Any], ...] = (),
    headroom: float = 0.0,
) -> LeakyQueue:
    """The queue that a shaper with these arguments has."""
    return LeakyQueue(() if rate is None else parse_rates(rate), burst, pace, gates, headroom)


def _queue(rate: RateLike | None, **rest: Any) -> Trial:
    return Trial(queue(rate, **rest), SECOND_US)


def _room(program: Concurrency) -> Trial:
    return Trial(program, program.lease_us)


def _adaptive(lowest: RateLike, highest: RateLike, burst: int | None = None) -> Trial:
    return Trial(AdaptiveQueue(Rate.parse(lowest), Rate.parse(highest), burst), 10 * SECOND_US)


def _measured(program: Algorithm[Any]) -> Trial:
    return Trial(program, _scale_us(program))


def _scale_us(program: Algorithm[Any]) -> int:
    if isinstance(program, Meter):
        return max(1, program.burst * program.rate.period_us // program.rate.limit)
    if isinstance(program, Composite):
        return max(_scale_us(part) for part in program.parts if not isinstance(part, Quota))
    if isinstance(program, Quota):
        return _scale_us(program.counter)
    if isinstance(program, (PeriodCounter, SpreadCounter)):
        start, end = program.periods.bounds(_DAY_US)
        return end - start
    if isinstance(program, (FixedWindow, SlidingWindow, SlidingWindowLog)):
        return program.window_us
    raise TypeError(f"no scale is known for {program!r}")
