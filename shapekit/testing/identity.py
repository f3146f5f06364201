"""Identity: a store answers generated timelines as the pure programs do, in every field."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from shapekit.manual_clock import ManualClock
from shapekit.rate import SECOND_US
from shapekit.stores.base import Store
from shapekit.testing.playing import Asked, Disagreement, Event, move_to, play
from shapekit.testing.timelines import Timeline, generated, next_edge_us
from shapekit.testing.trials import Trial
from shapekit.testing.truth import same

_TOGETHER = 50
"""Timelines that one after another happen on one store."""
_YEAR_US = 366 * 86_400 * SECOND_US

NewStore = Callable[[ManualClock], Store]


class Bench:
    """A store and its clock, and the operations bound so far."""

    def __init__(self, make_store: NewStore, start_us: int) -> None:
        self.clock = ManualClock(start_us / SECOND_US)
        self.store = make_store(self.clock)
        self.highest_us = start_us
        self._bound: dict[Any, Callable[..., Any]] = {}

    def ask(self, timeline: Timeline, asked: Asked) -> Any:
        """Put one question to the store."""
        program = timeline.trials[asked.program].program
        if asked.operation == "reset":
            return self.store.reset("timelines", program, asked.key)
        return self._call(self.store.bind, program, asked)(asked.key, *asked.args)

    async def aask(self, timeline: Timeline, asked: Asked) -> Any:
        """`ask`, awaitable."""
        program = timeline.trials[asked.program].program
        if asked.operation == "reset":
            return await self.store.areset("timelines", program, asked.key)
        return await self._call(self.store.abind, program, asked)(asked.key, *asked.args)

    def _call(self, bind: Callable[..., Any], program: Any, asked: Asked) -> Callable[..., Any]:
        call = self._bound.get((program, asked.operation))
        if call is None:
            call = self._bound[program, asked.operation] = bind("timelines", program, asked.operation)
        return call

    def replay(self, timeline: Timeline) -> None:
        """Disagreement if the store answers a question otherwise than the truth."""
        told = play(timeline, self.clock)
        try:
            asked = next(told)
            while True:
                self.highest_us = max(self.highest_us, self.clock.now_us())
                try:
                    answer = self.ask(timeline, asked)
                except Exception as error:
                    answer = error
                asked = told.send(answer)
        except StopIteration:
            pass

    async def areplay(self, timeline: Timeline) -> None:
        """`replay`, through the awaitable forms."""
        told = play(timeline, self.clock)
        try:
            asked = next(told)
            while True:
                self.highest_us = max(self.highest_us, self.clock.now_us())
                try:
                    answer = await self.aask(timeline, asked)
                except Exception as error:
                    answer = error
                asked = told.send(answer)
        except StopIteration:
            pass


def batches(
    name: str, trials: tuple[Trial, ...], timelines: int, steps: int
) -> Iterator[tuple[int, list[Timeline]]]:
    """Timelines for one store each time, and when they start."""
    for first in range(0, timelines, _TOGETHER):
        rng = random.Random(f"{name}-{first}")  # noqa: S311 - to be repeated
        start_us = rng.randint(_YEAR_US // 8, 60 * _YEAR_US)
        last = min(timelines, first + _TOGETHER)
        yield start_us, [generated(f"{name}-{number}", trials, steps) for number in range(first, last)]


def step_on(bench: Bench, timeline: Timeline) -> None:
    """Move to where a timeline starts: later than anything before it, now and then where clocks change."""
    rng = random.Random(f"start of {timeline.seed}")  # noqa: S311 - to be repeated
    start_us = bench.highest_us + rng.randint(0, 3 * timeline.trials[0].scale_us)
    if timeline.trials[0].program.civil and rng.random() < 0.3:
        start_us = max(start_us, next_edge_us(start_us) - rng.randint(0, 36 * 3_600 * SECOND_US))
    move_to(bench.clock, start_us)
    bench.highest_us = start_us


def check_identity(
    make_store: NewStore, name: str, trials: tuple[Trial, ...], timelines: int, steps: int
) -> None:
    """AssertionError with a minimal timeline if the store answers one otherwise than the truth."""
    for start_us, batch in batches(name, trials, timelines, steps):
        bench = Bench(make_store, start_us)
        try:
            for timeline in batch:
                step_on(bench, timeline)
                at_us = bench.clock.now_us()
                try:
                    bench.replay(timeline)
                except Disagreement as found:
                    raise _told(make_store, timeline, at_us, found) from None
        finally:
            bench.store.close()


async def acheck_identity(
    make_store: NewStore, name: str, trials: tuple[Trial, ...], timelines: int, steps: int
) -> None:
    """`check_identity`, through the awaitable forms."""
    for start_us, batch in batches(name, trials, timelines, steps):
        bench = Bench(make_store, start_us)
        try:
            for timeline in batch:
                step_on(bench, timeline)
                try:
                    await bench.areplay(timeline)
                except Disagreement as found:
                    raise AssertionError(_text(timeline, found, "awaited")) from None
        finally:
            await bench.store.aclose()


def _told(make_store: NewStore, timeline: Timeline, at_us: int, found: Disagreement) -> AssertionError:
    alone = _disagreement(make_store, timeline, at_us)
    if alone is None:
        return AssertionError(_text(timeline, found, "only after the timelines before it on the same store"))
    steps = list(timeline.steps)
    while True:
        for step in reversed(steps):
            left = [other for other in steps if other is not step]
            again = _disagreement(make_store, timeline._replace(steps=tuple(left)), at_us)
            if again is not None:
                steps, alone = left, again
                break
        else:
            return AssertionError(_text(timeline, alone, f"left of {len(timeline.steps)} steps"))


def _disagreement(make_store: NewStore, timeline: Timeline, at_us: int) -> Disagreement | None:
    bench = Bench(make_store, at_us)
    try:
        bench.replay(timeline)
    except Disagreement as found:
        return found
    finally:
        bench.store.close()
    return None


def _text(timeline: Timeline, found: Disagreement, how: str) -> str:
    last = found.events[-1]
    lines = [f"the store disagrees with the truth: timeline {timeline.seed!r}, step {last.number} ({how})"]
    lines += [f"  program {number}: {trial.program!r}" for number, trial in enumerate(timeline.trials)]
    lines += [_line(event) for event in found.events]
    for lawful in found.lawful:
        lines.append(f"  expected {lawful!r}")
        lines.append(f"  differs in {', '.join(_differences(lawful, last.answer)) or 'its type'}")
    return "\n".join(lines)


def _line(event: Event) -> str:
    program, operation, key, args = event.asked
    by = f" by program {program}" if program else ""
    ahead = f" (civil time {event.ahead_us:+} µs)" if event.ahead_us else ""
    asked = ", ".join(map(repr, (key, *args)))
    return f"  #{event.number} at {event.now_us} µs{ahead}: {operation}({asked}){by} -> {event.answer!r}"


def _differences(lawful: Any, answer: Any) -> list[str]:
    """The fields in which two answers differ."""
    if not isinstance(lawful, tuple) or not isinstance(answer, (tuple, list)) or len(lawful) != len(answer):
        return [f"{lawful!r} != {answer!r}"]
    names = getattr(lawful, "_fields", None) or [f"[{place}]" for place in range(len(lawful))]
    return [
        f"{name}: {one!r} != {other!r}"
        for name, one, other in zip(names, lawful, answer, strict=True)
        if not same(one, other)
    ]
