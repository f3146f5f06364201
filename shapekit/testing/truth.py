"""Truth: what a store has to answer, worked out with the pure programs and a dict.

A store may drop a state once the highest time it has seen is a second past the state's life, and need
not; so from then on the truth holds both: the state, and that there is none. Each answer tells which it
was. Everything else has one answer.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple, TypeAlias

from shapekit.algorithms.compose import Composite, adopted
from shapekit.rate import SECOND_US
from shapekit.stores.base import Key, Operation

LINGER_US = SECOND_US
"""How far the clock may go back without anything being lost."""

Record: TypeAlias = "str | tuple[str, str]"


class Held(NamedTuple):
    """A state, when its life ends, and the program that wrote it."""

    state: Any
    until_us: int
    writer: Any


NOTHING = Held(None, 0, None)


class Truth:
    """The states that a lawful store may hold, for the keys of one name."""

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
        """Take an answer, given at `(now, skew)`, for a fact; if it cannot be one, what could have been."""
        self.highest_us = max(self.highest_us, at[0])
        records = records_of(program, key)
        lawful: list[Any] = []
        kept: list[list[Held]] = [[] for _ in records]
        for before in product(*(self._possible(record) for record in records)):
            told, after = _played(program, operation, key, args, at, before)
            if same(told, answer):
                for held, one in zip(kept, after, strict=True):
                    if one not in held:
                        held.append(one)
            lawful.append(told)
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
    """Where the states of a key are: one place, or for a key in parts one for each."""
    if isinstance(key, str):
        return (key,)
    names = program.names if isinstance(program, Composite) else ()
    return tuple(zip(names, key, strict=True))


def _played(
    program: Any,
    operation: Operation,
    key: Key,
    args: tuple[Any, ...],
    at: tuple[int, int],
    before: tuple[Held, ...],
) -> tuple[Any, tuple[Held, ...]]:
    now, skew = at
    step = operation.step(program)
    if isinstance(key, str):
        [held] = before
        outcome = step(adopted(program, held.state, held.writer, now, skew), now, *args, skew=skew)
        if operation.is_read:
            return outcome, before
        state, told, ttl_us, persist = outcome
        return told, (Held(state, now + ttl_us, program),) if persist else before
    parts = program.parts
    states = tuple(
        adopted(part, held.state, held.writer, now, skew) for part, held in zip(parts, before, strict=True)
    )
    outcome = step(states, now, *args, skew=skew)
    if operation.is_read:
        return outcome, before
    after, told, _, persist = outcome
    if not persist:
        return told, before
    return told, tuple(
        held if new is old else Held(new, part.forecast(new, now, 1, skew).full_at_us, part)
        for part, held, old, new in zip(parts, before, states, after, strict=True)
    )


def same(one: Any, other: Any) -> bool:
    """Equal in every field, whole numbers as whole numbers; a list passes for a tuple."""
    if isinstance(one, (tuple, list)):
        return isinstance(other, (tuple, list)) and len(one) == len(other) and all(map(same, one, other))
    return one.__class__ is other.__class__ and bool(one == other)
