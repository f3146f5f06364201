"""Composites by brute force: models of the parts, and every microsecond tried in turn.

Nothing here computes an instant. A composite admits at an instant or not, and what it waits for is
found by trying the next microsecond, and the next.
"""

from copy import deepcopy
from typing import NamedTuple

from shapekit.algorithms.compose import AllOf, AnyOf, Composite

from .reference import Answer, Model, model_of

NEVER = 2**53


class Expected(NamedTuple):
    """What a composite's decision must contain."""

    answer: Answer
    binding: str | None
    paid: tuple[str, ...] = ()
    """The paths of the parts that were charged."""


class Leaf:
    """A part that is a limit."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def admits(self, at: int, cost: int) -> bool:
        return cost <= self.model.limit and self.model.admits(at, cost)

    def within_reach(self, cost: int) -> bool:
        return cost <= self.model.limit

    def check(self, now: int, cost: int) -> Expected:
        if self.admits(now, cost):
            return Expected(self.model.check(now, cost), None, ("",))
        denied = self.model.look(now, cost if self.within_reach(cost) else 1)
        return Expected(denied._replace(allowed=False, retry_after_us=patience(self, now, cost)), None)


class Tree:
    """A part that is a composite."""

    def __init__(self, limit: Composite, parts: dict[str, "Leaf | Tree"]) -> None:
        self.all, self.first = isinstance(limit, AllOf), not isinstance(limit, (AllOf, AnyOf))
        self.parts = parts

    def admits(self, at: int, cost: int) -> bool:
        return (all if self.all else any)(part.admits(at, cost) for part in self.parts.values())

    def within_reach(self, cost: int) -> bool:
        return (all if self.all else any)(part.within_reach(cost) for part in self.parts.values())

    def check(self, now: int, cost: int) -> Expected:
        return self.admission(now, cost) if self.admits(now, cost) else self.denial(now, cost)

    def admission(self, now: int, cost: int) -> Expected:
        payers = [name for name, part in self.parts.items() if part.admits(now, cost)]
        checked = {name: self.parts[name].check(now, cost) for name in (payers[:1] if self.first else payers)}
        remains = {name: part.answer.remaining for name, part in checked.items()}
        binding = (min if self.all else max)(checked, key=lambda name: remains[name])
        paid = tuple(join(name, path) for name, part in checked.items() for path in part.paid)
        return Expected(checked[binding].answer, join(binding, checked[binding].binding), paid)

    def denial(self, now: int, cost: int) -> Expected:
        waits = {name: patience(part, now, cost) for name, part in self.parts.items()}
        binding = (max if self.all else min)(waits, key=lambda name: waits[name])
        denied = deepcopy(self.parts[binding]).check(now, cost)
        answer = denied.answer._replace(retry_after_us=patience(self, now, cost))
        return Expected(answer, join(binding, denied.binding))


def join(name: str, path: str | None) -> str:
    return f"{name}.{path}" if path else name


def patience(part: "Leaf | Tree", now: int, cost: int) -> int:
    """How many microseconds one has to wait, tried one by one; NEVER if the cost is out of reach."""
    if not part.within_reach(cost):
        return NEVER
    wait = 0
    while not part.admits(now + wait, cost):
        wait += 1
    return wait


def brute_force(limit: object) -> "Leaf | Tree":
    if isinstance(limit, Composite):
        parts = zip(limit.names, limit.parts, strict=True)
        return Tree(limit, {name: brute_force(part) for name, part in parts})
    return Leaf(model_of(limit))
