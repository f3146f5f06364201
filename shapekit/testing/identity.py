"""Identity: checks that a store answers generated timelines as the pure programs do, in every field.

The expected answers are computed with the pure programs and a dict: the model. Once the highest time that a
store has seen is a second past the end of a state's life, the store may drop the state, but need not. From
then on, the model allows both, the state and a cold key, and each answer shows which it was. Everything else
has exactly one answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from shapekit._runtime.drivers import Driver, Twin
from shapekit.algorithms.base import DEBIT, REFUND
from shapekit.algorithms.compose import adopted
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL, CANCEL_MANY, LATE, RESERVE, RESERVE_MANY, SETTLE
from shapekit.clock import ManualClock
from shapekit.decision import Decision
from shapekit.rate import SECOND_US
from shapekit.stores.base import Key, Operation, Store, part_keys
from shapekit.testing.timelines import LINGER_US, NO_EDGE, Step, Timeline, Trial, generated, next_edge_us

Record: TypeAlias = "str | tuple[str, str]"


class Held(NamedTuple):
    """A state, when its life ends, and the program that wrote it."""

    state: Any
    until_us: int
    writer: Any


NOTHING = Held(None, 0, None)


class AllowedStates:
    """The states that a correct store may hold, for the keys of one name."""

    def __init__(self, highest_us: int) -> None:
        self.highest_us = highest_us
        self._held: dict[Record, tuple[Held, ...]] = {}

    def hear(
        self,
        program: Any,
        operation: Operation,
        key: Key,
        args: tuple[Any, ...],
        at: tuple[int, int],
        answer: Any,
    ) -> tuple[Any, ...]:
        """Narrow the states down by an answer at `(now, skew)`; returns the right answers if it is wrong."""
        self.highest_us = max(self.highest_us, at[0])
        records = records_of(program, key)
        lawful: list[Any] = []
        kept: list[list[Held]] = [[] for _ in records]
        for before in product(*(self._possible(record) for record in records)):
            expected, after = _played(program, operation, key, args, at, before)
            if same(expected, answer):
                for held, one in zip(kept, after, strict=True):
                    if one not in held:
                        held.append(one)
            lawful.append(expected)
        if not kept[0]:
            return tuple(lawful)
        for record, held in zip(records, kept, strict=True):
            self._held[record] = tuple(held)
        return ()

    def reset(self, program: Any, key: Key) -> None:
        """Make the key cold."""
        for record in records_of(program, key):
            self._held[record] = (NOTHING,)

    def _possible(self, record: Record) -> tuple[Held, ...]:
        held = self._held.get(record, (NOTHING,))
        if NOTHING not in held and any(one.until_us + LINGER_US <= self.highest_us for one in held):
            return (*held, NOTHING)
        return held


def records_of(program: Any, key: Key) -> tuple[Record, ...]:
    """The records with the states of a key: one, or one for each part."""
    return (key,) if isinstance(key, str) else part_keys(program, key)


def _played(
    program: Any,
    operation: Operation,
    key: Key,
    args: tuple[Any, ...],
    at: tuple[int, int],
    before: tuple[Held, ...],
) -> tuple[Any, tuple[Held, ...]]:
    now, skew = at
    is_whole = isinstance(key, str)
    parts = (program,) if is_whole else program.parts
    states = tuple(
        adopted(part, held.state, held.writer, now, skew) for part, held in zip(parts, before, strict=True)
    )
    outcome = operation.step(program)(states[0] if is_whole else states, now, *args, skew=skew)
    if operation.is_read:
        return outcome, before
    after, answer, ttl_us, persist = outcome
    if not persist:
        return answer, before
    if is_whole:
        return answer, (Held(after, now + ttl_us, program),)
    return answer, tuple(
        held if new is old else Held(new, part.forecast(new, now, 1, skew).full_at_us, part)
        for part, held, old, new in zip(parts, before, states, after, strict=True)
    )


def same(one: Any, other: Any) -> bool:
    """Whether two answers are equal in every field and its type, except that a list equals a tuple."""
    if isinstance(one, (tuple, list)):
        return isinstance(other, (tuple, list)) and len(one) == len(other) and all(map(same, one, other))
    return one.__class__ is other.__class__ and bool(one == other)


class Event(NamedTuple):
    """A question to the store, when it was asked, and the answer."""

    number: int
    now_us: int
    ahead_us: int
    program: int
    """The number of the program that asked."""
    operation: Operation | None
    key: Key
    args: tuple[Any, ...]
    answer: Any

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The slots in the answer; a single one may be a refusal."""
        if self.operation is RESERVE:
            return (Grant(*self.answer),)
        if self.operation is RESERVE_MANY:
            return tuple(granted for granted in self.answer[1] if granted.accepted)
        return ()

    @property
    def wait_us(self) -> int:
        """How long the answer asks to wait."""
        if isinstance(self.answer, Decision):
            return self.answer.retry_after_us
        return self.grants[-1].wait_us if self.grants else 0


class Disagreement(Exception):  # noqa: N818 - it is caught and raised as an AssertionError
    """The events up to the first wrong answer, and the answers that would have been right."""

    def __init__(self, events: list[Event], lawful: tuple[Any, ...]) -> None:
        super().__init__(events, lawful)
        self.events = events
        self.lawful = lawful


def _resolved(step: Step, earlier: Event | None) -> tuple[Any, ...] | None:
    """The arguments, or None if the earlier step has no grant or receipt that this one could refer to."""
    if step.operation is CANCEL_MANY:
        is_batch = earlier is not None and earlier.operation is RESERVE_MANY
        return (earlier.grants,) if earlier is not None and is_batch else None
    if step.operation in (CANCEL, LATE, SETTLE):
        if earlier is None or not earlier.grants or not earlier.grants[-1].accepted:
            return None
        grant = earlier.grants[-1]
        if step.operation is LATE:
            many, nonce = step.args
            return (((grant.generation, grant.due_us, grant.cost, nonce),) * many,)
        return (grant,) if step.operation is CANCEL else ((grant, *step.args),)
    decision = None if earlier is None else earlier.answer
    receipt = decision.receipt if isinstance(decision, Decision) else None
    if step.operation is REFUND:
        return None if receipt is None else (*step.args, receipt)
    return (*step.args, receipt) if step.operation is DEBIT else step.args


def _move(clock: ManualClock, step: Step, wait_us: int, highest_us: int) -> None:
    now = clock.now_us()
    ahead_us = clock.wall_us() - now
    target = now + step.move_us
    if step.edge != NO_EDGE and wait_us:
        target = now + wait_us + step.edge
    move_to(clock, max(0, target, highest_us - LINGER_US))
    if step.ahead_us != ahead_us:
        clock.step_wall((step.ahead_us - ahead_us) / SECOND_US)


def move_to(clock: ManualClock, target_us: int) -> None:
    """Set the clock to an instant, unless it shows it already."""
    if target_us != clock.now_us():
        clock.set(target_us / SECOND_US)


_TOGETHER = 50
"""How many timelines are run one after another on one store."""
_YEAR_US = 366 * 86_400 * SECOND_US

NewStore = Callable[[ManualClock], Store]


class Bench:
    """A store and its clock, and the operations bound so far."""

    def __init__(self, make_store: NewStore, start_us: int) -> None:
        self.clock = ManualClock(start_us / SECOND_US)
        self.store = make_store(self.clock)
        self.highest_us = start_us
        self._bound = cache(partial(self.store.twin, "timelines"))

    async def replay(self, driver: Driver, timeline: Timeline) -> None:
        """Run a timeline; raises Disagreement if the store answers a question wrongly."""
        clock = self.clock
        truth = AllowedStates(clock.now_us())
        events: dict[int, Event] = {}
        wait_us = 0
        for step in timeline.steps:
            earlier = events.get(step.of)
            # A grant is given back and settled by the queue that granted it, in whose units it is.
            is_of_grants = earlier is not None and earlier.operation in (RESERVE, RESERVE_MANY)
            index = earlier.program if earlier is not None and is_of_grants else step.program
            program = timeline.trials[index].program
            args = _resolved(step, earlier)
            if args is None:
                continue
            _move(clock, step, wait_us, truth.highest_us)
            self.highest_us = max(self.highest_us, clock.now_us())
            key = timeline.key(step.key)
            try:
                answer = await self._ask(driver, program, step.operation, key, args)
            except Exception as error:
                answer = error
            now, wall = clock.now_us(), clock.wall_us()
            event = Event(step.number, now, wall - now, index, step.operation, key, args, answer)
            events[step.number] = event
            if step.operation is None:
                truth.reset(program, key)
                if answer is not None:
                    raise Disagreement([*events.values()], (None,))
                continue
            lawful = truth.hear(program, step.operation, key, args, (now, wall - now), answer)
            if lawful:
                raise Disagreement([*events.values()], lawful)
            wait_us = event.wait_us

    async def _ask(
        self, driver: Driver, program: Any, operation: Operation | None, key: Key, args: tuple[Any, ...]
    ) -> Any:
        if operation is None:
            return await driver.ask(Twin(self.store.reset, self.store.areset), "timelines", program, key)
        return await driver.ask(self._bound(program, operation), key, *args)

    async def close(self, driver: Driver) -> None:
        await driver.ask(Twin(self.store.close, self.store.aclose))


def step_on(bench: Bench, timeline: Timeline) -> None:
    """Move to the start of a timeline: later than all before it, sometimes at a daylight saving change."""
    rng = random.Random(f"start of {timeline.seed}")  # noqa: S311 - to be repeated
    start_us = bench.highest_us + rng.randint(0, 3 * timeline.trials[0].scale_us)
    if timeline.trials[0].program.civil and rng.random() < 0.3:
        start_us = max(start_us, next_edge_us(start_us) - rng.randint(0, 36 * 3_600 * SECOND_US))
    move_to(bench.clock, start_us)
    bench.highest_us = start_us


async def check_identity(
    driver: Driver, make_store: NewStore, name: str, trials: tuple[Trial, ...], timelines: int, steps: int
) -> None:
    """Raise AssertionError with a minimal timeline if the store answers one wrongly."""
    for first in range(0, timelines, _TOGETHER):
        rng = random.Random(f"{name}-{first}")  # noqa: S311 - to be repeated
        bench = Bench(make_store, rng.randint(_YEAR_US // 8, 60 * _YEAR_US))
        try:
            for number in range(first, min(timelines, first + _TOGETHER)):
                timeline = generated(f"{name}-{number}", trials, steps)
                step_on(bench, timeline)
                at_us = bench.clock.now_us()
                try:
                    await bench.replay(driver, timeline)
                except Disagreement as found:
                    raise AssertionError(
                        await _explained(driver, make_store, timeline, at_us, found)
                    ) from None
        finally:
            await bench.close(driver)


async def _explained(
    driver: Driver, make_store: NewStore, timeline: Timeline, at_us: int, found: Disagreement
) -> str:
    alone = await _disagreement(driver, make_store, timeline, at_us)
    if alone is None:
        return _text(timeline, found, "only after the timelines before it on the same store")
    steps = list(timeline.steps)
    while True:
        for step in reversed(steps):
            left = [other for other in steps if other is not step]
            again = await _disagreement(driver, make_store, timeline._replace(steps=tuple(left)), at_us)
            if again is not None:
                steps, alone = left, again
                break
        else:
            return _text(timeline, alone, f"left of {len(timeline.steps)} steps")


async def _disagreement(
    driver: Driver, make_store: NewStore, timeline: Timeline, at_us: int
) -> Disagreement | None:
    bench = Bench(make_store, at_us)
    try:
        await bench.replay(driver, timeline)
    except Disagreement as found:
        return found
    finally:
        await bench.close(driver)
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
    by = f" by program {event.program}" if event.program else ""
    ahead = f" (civil time {event.ahead_us:+} µs)" if event.ahead_us else ""
    asked = f"{event.operation}({', '.join(map(repr, (event.key, *event.args)))}){by}"
    return f"  #{event.number} at {event.now_us} µs{ahead}: {asked} -> {event.answer!r}"


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
