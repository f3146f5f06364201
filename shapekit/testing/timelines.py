"""Timelines: generated histories of operations on a few keys, as plain values.

A timeline is a trial and steps. A step refers to earlier steps by their number, so that a failing timeline
can be reduced step by step until only those that show the fault are left.

Histories are realistic: the clock goes back to at most a second below the highest time seen, because beyond
that a store may have dropped states that it then would need.

Trials: the programs that a store is tested with, small enough that a few calls exhaust each.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from shapekit.algorithms.base import CHECK, DEBIT, FORECAST, PEEK, REFUND, Algorithm
from shapekit.algorithms.compose import Composite, all_of, any_of, first_of
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA, LeakyBucket, Meter, TokenBucket
from shapekit.algorithms.inflight import ENTER, KEEP, LEAVE, WATCH, Concurrency
from shapekit.algorithms.ledger import Ledger, ledgered
from shapekit.algorithms.overrides import Override, effective
from shapekit.algorithms.queue.adaptive import FULL, LEAST, STATED, SUCCEEDED, THROTTLED, AdaptiveQueue
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.wire import (
    CANCEL,
    CANCEL_MANY,
    CONFIRM,
    HOLD,
    LATE,
    LOOK,
    MARK,
    RESERVE,
    RESERVE_MANY,
    RESUME,
    SETTLE,
)
from shapekit.algorithms.quota import PeriodCounter, Quota, SpreadCounter
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.rate import SECOND_US, Rate, RateLike, parse_rates
from shapekit.stores.base import Key, Operation

_DAY_US = 86_400 * SECOND_US
LINGER_US = SECOND_US
"""How far the clock may go back without a state being lost."""


class Trial(NamedTuple):
    """A program, and the span of time in which it changes, which is the scale of its timelines."""

    program: Any
    scale_us: int
    apart: bool = False
    """Whether each part of the composite gets a key of its own."""

    @property
    def is_queue(self) -> bool:
        """Whether the program is a queue, which delays calls."""
        return isinstance(self.program, LeakyQueue)

    @property
    def is_adaptive(self) -> bool:
        """Whether the program has an adaptive rate."""
        return isinstance(self.program, AdaptiveQueue)

    @property
    def is_room(self) -> bool:
        """Whether the program counts calls in flight."""
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
"""Rates, each with the burst of a meter at this rate."""


def meters(kind: Callable[[RateLike, int], Meter]) -> list[Trial]:
    """A meter of each odd rate."""
    return [_measured(kind(rate, burst)) for rate, burst in ODD_RATES]


def windows(kind: Callable[[int, timedelta], Any]) -> list[Trial]:
    """Windows of several lengths, round and odd."""
    sizes = ((5, SECOND_US), (3, 10 * SECOND_US), (7, 999_983), (2, 60 * SECOND_US), (9, 13))
    return [_measured(kind(limit, timedelta(microseconds=span))) for limit, span in sizes]


def sliding_windows() -> list[Trial]:
    """Sliding windows of several sizes, with the oldest tick weighted or whole."""
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


def ledgers() -> list[Trial]:
    """Limits in a ledger, as a gate keeps them; single and with keys for their parts."""
    alone: tuple[Algorithm[Any], ...] = (
        GCRA("7/s", 3),
        GCRA(Rate.of(5, 3), 4),
        FixedWindow("5/s"),
        SlidingWindow("6/s", buckets=3),
        SlidingWindowLog("5/s"),
        Quota("4/day", tz="Europe/Berlin"),
        Quota("5/day", spread=True),
        Quota("4/rolling:10s"),
    )
    together = (
        all_of(a=GCRA("7/s", 3), b=FixedWindow("5/s")),
        any_of(a=SlidingWindow("5/s"), b=all_of(x=GCRA("3/s", 4), y=Quota("9/day"))),
        first_of(a=FixedWindow("2/s"), b=SlidingWindowLog("4/s"), c=LeakyBucket("3/s", 6)),
    )
    flat = [_measured(ledgered(limit)) for limit in (*alone, *together)]
    return [*flat, *(trial._replace(apart=True) for trial in flat[len(alone) :])]


def queues() -> list[Trial]:
    """Queues: plain, with a burst, with several rates, with pace="burst", with gates."""
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
        _queue("5/s", gates=(all_of(a=GCRA("3/s", 2), b=FixedWindow("4/s")),)),
        _queue("5/s", gates=(Quota("6/day", tz="Europe/Berlin"), SlidingWindow("5/s", buckets=4))),
        _queue("5/s", gates=(any_of(a=GCRA("1/s", 2), b=SlidingWindowLog("3/s")),)),
        _queue("5/s", gates=(first_of(a=Quota("6/day"), b=GCRA("1/s", 2)),)),
        _queue(None, gates=(GCRA("3/s", 2), Quota("9/rolling:10s"))),
        _queue("5/s", gates=(Quota("20/fixed:10s", spread=True),)),
        _queue(None, gates=(Quota("6/day", tz="Europe/Berlin", spread=True), SlidingWindowLog("3/s"))),
    ]


def rooms() -> list[Trial]:
    """Concurrency with one permit, with a few, and with more than are asked for; short and long leases."""
    leases = ((1, "1s"), (2, "10s"), (3, "1m"), (50, "1h"))
    return [_measured(Concurrency(limit, lease)) for limit, lease in leases]


def adaptive_queues() -> list[Trial]:
    """Queues with an adaptive rate: with bounds far apart and close, with odd numbers, with a burst."""
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
    "ledger": ledgers,
    "leaky_queue": queues,
    "adaptive_queue": adaptive_queues,
    "concurrency": rooms,
}
"""The trials of each algorithm, by its kind."""


def changes() -> list[tuple[Trial, Trial]]:
    """Pairs of trials of one kind with different numbers: the second continues the state of the first."""
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
    chosen = [before_and_after[place] for place in (0, 4, 5, 6, 7, 14)]
    chosen.append((FixedWindow("5/s"), FixedWindow("4/s")))
    pairs = [(_measured(before), _measured(after)) for before, after in before_and_after]
    apart = [
        (before._replace(apart=True), after._replace(apart=True))
        for before, after in pairs
        if isinstance(before.program, Composite) and before.program.names == after.program.names
    ]
    return [
        *pairs,
        *apart,
        *((_measured(ledgered(old)), _measured(ledgered(new))) for old, new in chosen),
        (_queue("7/s"), _queue("3/s burst 2")),
        (_adaptive("1/s", "50/s"), _adaptive("2/s", Rate.of(62, 999_983), 3)),
        (_queue("10/s; 15/min"), _queue("8/s; 12/min; 30/h")),
        (_queue("5/s", gates=(GCRA("3/s", 2),)), _queue("5/s", gates=(GCRA("2/s", 4), Quota("9/day")))),
        (_queue("5/s"), _set(_queue("5/s"), Override(rate="20/s"))),
        (_queue("7/s burst 3"), _set(_queue("7/s burst 3"), Override(rate="3 per 2 s", burst=2))),
        (_queue("5/s"), _set(_queue("5/s"), Override(state="held"))),
        (
            _queue("5/s", gates=(Quota("5/day"),)),
            _set(_queue("5/s", gates=(Quota("5/day"),)), Override(rate="9/s", quota="9/day")),
        ),
        (_adaptive("1/s", "50/s"), _set(_adaptive("1/s", "50/s"), Override(rate="7/s"))),
        (_measured(Concurrency(3, "10s")), _measured(Concurrency(2, "4s"))),
        (_measured(Concurrency(1, "2s")), _measured(Concurrency(4, "30s"))),
    ]


def limited(units: int) -> dict[str, Any]:
    """A strategy of each kind that admits exactly `units` on a cold key at one instant."""
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
    """The queue of a shaper with these arguments."""
    return LeakyQueue(() if rate is None else parse_rates(rate), burst, pace, gates, headroom)


def _queue(rate: RateLike | None, **rest: Any) -> Trial:
    return _measured(queue(rate, **rest))


def _adaptive(lowest: RateLike, highest: RateLike, burst: int | None = None) -> Trial:
    return _measured(AdaptiveQueue(Rate.parse(lowest), Rate.parse(highest), burst))


def _set(trial: Trial, override: Override) -> Trial:
    """The trial with limits that an operator has set."""
    return trial._replace(program=effective(trial.program, override))


def _measured(program: Any) -> Trial:
    return Trial(program, _scale_us(program))


def _scale_us(program: Any) -> int:
    if isinstance(program, LeakyQueue):
        return 10 * SECOND_US if isinstance(program, AdaptiveQueue) else SECOND_US
    if isinstance(program, Concurrency):
        return program.lease_us
    if isinstance(program, Ledger):
        return _scale_us(program.limit)
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


NO_EDGE = 2

GATE_OPERATIONS = (*(CHECK,) * 9, *(REFUND,) * 4, *(DEBIT,) * 2, PEEK, FORECAST)
QUEUE_OPERATIONS = (
    *(RESERVE,) * 9, *(CANCEL,) * 4, *(CONFIRM,) * 2, *(SETTLE,) * 2,
    *(HOLD,) * 2, *(MARK,) * 2, *(LATE,) * 3, RESUME, LOOK, *(RESERVE_MANY,) * 2, *(CANCEL_MANY,) * 2,
)  # fmt: skip
ADAPTIVE_OPERATIONS = (
    *(RESERVE,) * 9, *(CANCEL,) * 2, *(SETTLE,) * 2, *(THROTTLED,) * 3, *(SUCCEEDED,) * 6,
    CONFIRM, *(STATED,) * 3, *(LATE,) * 2, HOLD, MARK, RESUME, LOOK,
)  # fmt: skip
ROOM_OPERATIONS = (*(ENTER,) * 9, *(LEAVE,) * 5, *(WATCH,) * 3, *(KEEP,) * 3, LOOK)


class Step(NamedTuple):
    """An operation, and how time moves before it."""

    number: int
    operation: Operation | None
    """None: the key is made cold."""
    key: int
    args: tuple[Any, ...] = ()
    of: int = -1
    """The number of the step whose receipt or grant is used."""
    move_us: int = 0
    edge: int = NO_EDGE
    """From -1 to 1: move so far that the last wait is over, and by this much more."""
    ahead_us: int = 0
    """How far civil time is ahead."""
    program: int = 0
    """Which of the trials' programs asks, if there are several."""


class Timeline(NamedTuple):
    """A generated history of operations on a few keys of one name."""

    seed: str
    trials: tuple[Trial, ...]
    steps: tuple[Step, ...]

    def key(self, index: int) -> Key:
        """The key of a step; if parts have their own keys, keys share some of these."""
        if not self.trials[0].apart:
            return f"{self.seed}/{index}"
        return tuple(
            f"{self.seed}/{index >> place & 1}" for place, _ in enumerate(self.trials[0].program.names)
        )


def generated(seed: str, trials: tuple[Trial, ...], length: int) -> Timeline:
    """The timeline of a seed, which is always the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to be kept secret
    return Timeline(seed, trials, tuple(_step(rng, trials, number) for number in range(length)))


def _step(rng: random.Random, trials: tuple[Trial, ...], number: int) -> Step:
    program = rng.randrange(len(trials)) if number > 2 else 0
    trial = trials[program]
    operation: Operation | None = rng.choice(_operations(trial))
    of = -1
    of_another = (REFUND, CANCEL, CANCEL_MANY, LATE, SETTLE)
    if operation in of_another or (operation is DEBIT and rng.random() < 0.5):
        if number == 0:
            operation = RESERVE if trial.is_queue else CHECK
        else:
            of = rng.choice((number - 1, rng.randrange(number)))
    if rng.random() < 0.02:
        operation, of = None, -1
    edge = rng.randint(-1, 1) if rng.random() < 0.1 else NO_EDGE
    ahead_us = 0
    if trial.program.civil and rng.random() < 0.15:
        ahead_us = rng.choice((1, 3_600 * SECOND_US, -_DAY_US // 3, 17 * _DAY_US))
    key = rng.choice((0, 0, 0, 1, 2))
    args = (_of_room if trial.is_room else _arguments)(rng, trial, operation)
    return Step(number, operation, key, args, of, _move_us(rng, trial.scale_us), edge, ahead_us, program)


def _operations(trial: Trial) -> tuple[Operation, ...]:
    if trial.is_room:
        return ROOM_OPERATIONS
    if trial.is_adaptive:
        return ADAPTIVE_OPERATIONS
    return QUEUE_OPERATIONS if trial.is_queue else GATE_OPERATIONS


def _of_room(rng: random.Random, trial: Trial, operation: Operation | None) -> tuple[Any, ...]:
    """Few owners with few numbers, so that they repeat; sometimes the largest possible ones."""
    owner = rng.choice((1, 2, 3, 2**53 - 1))
    number = rng.choice((*range(1, 7), 2**53 - 1))
    if operation is ENTER:
        return (owner, number, rng.choice((0, 1, 1)))
    if operation is LEAVE:
        return (owner, number)
    if operation is KEEP:
        numbers = tuple(rng.sample(range(1, 7), rng.randint(0, 4)))
        return (owner, rng.choice((0, 3, 6)), numbers)
    if operation is WATCH:
        return (owner,)
    return ()


def _move_us(rng: random.Random, scale_us: int) -> int:
    """A step of time: tiny, large, to an edge of the limit, back, or past the life of a state."""
    how = rng.random()
    if how < 0.35:
        return 0
    if how < 0.55:
        return rng.randint(0, scale_us // 4 + 1)
    if how < 0.8:
        return max(0, scale_us * rng.randint(1, 25) // 20 + rng.randint(-1, 1))
    if how < 0.95:
        return -rng.choice((1, rng.randint(1, LINGER_US), min(LINGER_US, scale_us // 3 + 1)))
    return 4 * scale_us + rng.randint(1, 4 * SECOND_US)


def _arguments(rng: random.Random, trial: Trial, operation: Operation | None) -> tuple[Any, ...]:
    most = min(trial.program.max_cost, 6 if trial.is_queue else trial.program.max_cost)
    cost = 1 if rng.random() < 0.6 else rng.randint(1, most)
    wait = rng.choice((None, None, 0, rng.randint(0, 2 * trial.scale_us)))
    if operation in (CHECK, FORECAST, REFUND):
        return (cost,)
    if operation is DEBIT:
        return (rng.randint(1, 2 * most),)
    if operation is RESERVE:
        return ((cost, wait, rng.getrandbits(51)),)
    if operation is RESERVE_MANY:
        calls = tuple((cost, wait, rng.getrandbits(51)) for _ in range(rng.randrange(3)))
        span = max(0, rng.randint(0, 20) * trial.scale_us // 10 - rng.randint(0, 1))
        return calls, (rng.randrange(6), span, rng.getrandbits(51))
    if operation is SETTLE:
        return (rng.randint(0, 2 * most), rng.getrandbits(51))
    if operation in (HOLD, MARK):
        return (rng.randint(1, 2 * trial.scale_us), rng.getrandbits(51))
    if operation is LATE:
        return rng.choice((1, 1, 3)), rng.getrandbits(51)
    if operation is RESUME:
        return (rng.choice((0, 250_000)),)
    return _of_adaptive(rng, trial, operation)


def _of_adaptive(rng: random.Random, trial: Trial, operation: Operation | None) -> tuple[Any, ...]:
    """Outcomes of calls, most of which left lately, some long ago."""
    age = rng.choice((0, rng.randint(0, SECOND_US), rng.randint(0, 3 * trial.scale_us)))
    if operation is THROTTLED:
        return (age, rng.choice((0, rng.randint(1, trial.scale_us))), rng.getrandbits(51))
    if operation is SUCCEEDED:
        return (rng.choice((0, 1, rng.randint(0, 100))), age, rng.getrandbits(51))
    if operation is STATED:
        return (rng.choice((LEAST, FULL, rng.randint(LEAST, FULL))), age, rng.getrandbits(51))
    return ()


@cache
def _edges_us() -> tuple[int, ...]:
    """When European clocks change: the last Sundays of March and October."""
    found = []
    for year in range(1996, 2100):
        for month in (3, 10):
            last = datetime(year, month, 31, 1, tzinfo=UTC)
            last -= timedelta(days=(last.weekday() + 1) % 7)
            found.append(int(last.timestamp()) * SECOND_US)
    return tuple(found)


def next_edge_us(after_us: int) -> int:
    """The next change of European clocks."""
    edges = _edges_us()
    return edges[min(len(edges) - 1, bisect_right(edges, after_us))]
