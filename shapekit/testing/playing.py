"""Playing a timeline: the questions it puts to a store, and whether the answers can be."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias

from shapekit.algorithms.grant import Grant
from shapekit.decision import Decision
from shapekit.manual_clock import ManualClock
from shapekit.rate import SECOND_US
from shapekit.stores.base import Key
from shapekit.testing.timelines import NO_EDGE, Step, Timeline
from shapekit.testing.truth import LINGER_US, Truth


class Asked(NamedTuple):
    """A question to the store: which of the programs asks, and what."""

    program: int
    operation: str
    key: Key
    args: tuple[Any, ...]


class Event(NamedTuple):
    """A question, when it was asked, and what came back."""

    number: int
    now_us: int
    ahead_us: int
    asked: Asked
    answer: Any


class Disagreement(Exception):  # noqa: N818 - it is caught and told as an AssertionError
    """The events up to the one whose answer cannot be, and what it could have been."""

    def __init__(self, events: list[Event], lawful: tuple[Any, ...]) -> None:
        super().__init__(events, lawful)
        self.events = events
        self.lawful = lawful


Play: TypeAlias = Generator[Asked, Any, None]


def play(timeline: Timeline, clock: ManualClock) -> Play:
    """Yields each question, is sent the answer (or the error); Disagreement if the truth has another."""
    truth = Truth(clock.now_us())
    events: list[Event] = []
    receipts: dict[int, Any] = {}
    grants: dict[int, Grant] = {}
    batches: dict[int, tuple[Grant, ...]] = {}
    granted_by: dict[int, int] = {}
    wait_us = 0
    for step in timeline.steps:
        # Whoever reserved gives back and settles: grants are in the numbers of their queue.
        index = granted_by.get(step.of, step.program)
        program = timeline.trials[index].program
        args = _resolved(step, receipts, grants, batches)
        if args is None:
            continue
        _move(clock, step, wait_us, truth.highest_us)
        key = timeline.key(step.key)
        asked = Asked(index, step.operation, key, args)
        answer = yield asked
        now, wall = clock.now_us(), clock.wall_us()
        events.append(Event(step.number, now, wall - now, asked, answer))
        if step.operation == "reset":
            truth.reset(program, key)
            if answer is not None:
                raise Disagreement(events, (None,))
            continue
        lawful = truth.hear(program, step.operation, key, args, (now, wall - now), answer)
        if lawful:
            raise Disagreement(events, lawful)
        wait_us = 0
        if isinstance(answer, Decision):
            wait_us = answer.retry_after_us
            receipts[step.number] = answer.receipt
        elif step.operation == "reserve":
            granted_by[step.number] = index
            grants[step.number] = grant = Grant(*answer)
            wait_us = grant.wait_us
        elif step.operation == "reserve_many":
            granted_by[step.number] = index
            batches[step.number] = taken = tuple(Grant(*granted) for granted in answer[1] if granted[0])
            if taken:
                grants[step.number] = taken[-1]
                wait_us = taken[-1].wait_us


def _resolved(
    step: Step, receipts: dict[int, Any], grants: dict[int, Grant], batches: dict[int, tuple[Grant, ...]]
) -> tuple[Any, ...] | None:
    """The arguments, or None if the step speaks of something that there is not."""
    if step.operation == "cancel_many":
        taken = batches.get(step.of)
        return None if taken is None else (taken,)
    if step.operation in ("cancel", "settle"):
        grant = grants.get(step.of)
        if grant is None or not grant.accepted:
            return None
        return (grant,) if step.operation == "cancel" else ((grant, *step.args),)
    if step.operation == "refund":
        receipt = receipts.get(step.of)
        return None if receipt is None else (*step.args, receipt)
    return step.args


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
    """Set the clock to an instant, if it is not there."""
    if target_us != clock.now_us():
        clock.set(target_us / SECOND_US)
