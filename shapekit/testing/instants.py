"""What a store promises about time: one reading per call, and nothing gained by a clock that goes back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.manual_clock import ManualClock
from shapekit.rate import SECOND_US
from shapekit.stores.base import Store
from shapekit.testing.contract import agree
from shapekit.testing.truth import Truth


class CountedClock(ManualClock):
    """Goes on by a microsecond with each reading, and counts them."""

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.reads: list[int] = []

    def now_us(self) -> int:
        now = super().now_us()
        self.reads.append(now)
        self.advance(0.000_001)
        return now

    def wall_us(self) -> int:
        # Of the reading before: a store that asks for both hands has asked for one instant.
        return self.reads[-1] if self.reads else super().wall_us()


def one_instant(make_store: Callable[[ManualClock], Store]) -> None:
    """A call reads the clock once, however many keys it asks for, and decides by what it read."""
    program = GCRA("7/s", 2)
    clock = CountedClock(10**6)
    store = make_store(clock)
    truth = Truth(0)
    try:
        check = store.bind("instant", program, "check")
        peek = store.bind("instant", program, "peek")
        many = store.bind_many("instant", program, "check")
        calls: list[tuple[str, list[str], Callable[[], list[Any]]]] = [
            ("check", ["a", "b", "a", "c"], lambda: many(["a", "b", "a", "c"], (1,))),
            ("check", ["a"], lambda: [check("a", 1)]),
            ("peek", ["a"], lambda: [peek("a")]),
        ]
        for operation, keys, call in calls * 4:
            clock.reads.clear()
            answers = call()
            agree(len(clock.reads), 1, f"how often one {operation} of {keys} read the clock")
            args = (1,) if operation == "check" else ()
            for key, answer in zip(keys, answers, strict=True):
                lawful = truth.hear(program, operation, key, args, (clock.reads[0], 0), answer)
                if lawful:
                    raise AssertionError(f"{operation}({key!r}): expected {lawful[0]!r}, got {answer!r}")
    finally:
        store.close()


def going_back_mints_nothing(make_store: Callable[[ManualClock], Store], seed: str) -> None:
    """However far the clock goes back, no more is admitted than until the highest time it has shown."""
    rng = random.Random(seed)  # noqa: S311 - to be repeated
    start_us, period_us, limit = 10**15, 1_000 * SECOND_US, 5
    programs: tuple[Any, ...] = (
        GCRA("5 per 1000 s", 5),
        FixedWindow("5 per 1000 s"),
        SlidingWindowLog("5 per 1000 s"),
        Quota("5/fixed:1000s"),
    )
    for program in programs:
        clock = ManualClock(start_us / SECOND_US)
        store = make_store(clock)
        try:
            check = store.bind("back", program, "check")
            admitted = {"early": 0, "always": 0}
            highest_us = start_us
            for turn in range(120):
                # Far apart, with enough of others at the late instants for idle keys to be dropped.
                late = turn % 2 == 1
                now_us = start_us + rng.randint(0, SECOND_US) + late * (3 * period_us + turn * 20 * SECOND_US)
                highest_us = max(highest_us, now_us)
                clock.set(now_us / SECOND_US)
                for passing in range(4 * late):
                    check(f"passing-{turn}-{passing}", 1)
                for key in ("always",) if late else admitted:
                    admitted[key] += sum(check(key, 1).allowed for _ in range(limit + 1))
                most = limit * ((highest_us - start_us) // period_us + 2)
                if max(admitted.values()) > most:
                    raise AssertionError(
                        f"{program!r} admitted {admitted} until {highest_us - start_us} µs after the start, "
                        f"while the clock went back and forth: at most {most} can be right"
                    )
        finally:
            store.close()
