"""Composites: several limits decided together, none or all.

`all_of` admits what every part admits, `any_of` what at least one admits (those that do are
charged), `first_of` charges the first part that admits and leaves the others alone. Parts are computed
first and committed only then, so a denial leaves no part charged. Composites nest.

The decision is that of the *binding* part and names it (`outer.inner` where nested): the one with the
least remaining when all admit, the most when any does; the longest wait when `all_of` denies, the
shortest when the others do. Ties go to the first. Where it is a quota that binds, the composite is spent.

    >>> from shapekit import GCRA, Quota, all_of
    >>> limit = all_of(second=GCRA("10/s"), month=Quota("1000/month"))
    >>> limit.check(None, 0, 1).decision.binding
    'second'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from shapekit.algorithms.base import NEVER_US, Algorithm, Decided
from shapekit.algorithms.composite import Composite, States, least_of, named
from shapekit.decision import Decision, Receipt

__all__ = ["AllOf", "AnyOf", "FirstOf", "all_of", "any_of", "first_of"]


class AllOf(Composite):
    """Admits what every part admits; see `all_of`."""

    __slots__ = ()
    kind: ClassVar[str] = "all_of"

    @property
    def max_cost(self) -> int:
        return min(self._max_costs)

    def decide(self, state: States | None, now: int, cost: int, skew: int = 0) -> Decided[States]:
        states = state or self._cold
        after: list[Any] = []
        decisions: list[Decision] = []
        least = NEVER_US
        life = binding = 0
        for index, step in enumerate(self._steps):
            part, decision, ttl, admitted = step(states[index], now, cost, skew)
            if not admitted:
                return self._denied(state, now, cost, skew)
            after.append(part)
            decisions.append(decision)
            if decision[3] < least:
                least = decision[3]
                binding = index
            if ttl > life:
                life = ttl
        receipts = tuple([decision[7] for decision in decisions])
        return tuple(after), named(self.names[binding], decisions[binding], receipts), life, True

    def charge(self, state: States | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[States]:
        return self._charged(state, [True] * len(self.parts), now, due, cost, skew)

    def earliest(self, state: States | None, at: int, cost: int, skew: int = 0) -> int:
        states = state or self._cold
        while True:
            later = max(
                [
                    part.earliest(before, at, cost, skew)
                    for part, before in zip(self.parts, states, strict=True)
                ]
            )
            if later == at:
                return at
            at = later

    def _binding(self, admit_at: Sequence[int]) -> int:
        return admit_at.index(max(admit_at))

    def _fitting(self, fits: Sequence[int]) -> int:
        return min(fits)

    def _surely_paid(self) -> Sequence[bool]:
        return self._payers()

    def _payers(self) -> Sequence[bool]:
        return [True] * len(self.parts)

    def _admitting(self, seen: Sequence[Decision]) -> int:
        return least_of(seen, lambda decision: decision.remaining)

    def _denying(self, seen: Sequence[Decision]) -> int:
        return least_of(seen, lambda decision: -decision.retry_after_us)


class _Alternatives(Composite):
    """Admits what one part admits."""

    __slots__ = ()
    _charges_all: ClassVar[bool]

    @property
    def max_cost(self) -> int:
        return max(self._max_costs)

    def decide(self, state: States | None, now: int, cost: int, skew: int = 0) -> Decided[States]:
        after = list(state or self._cold)
        receipts: list[Receipt] = [None] * len(after)
        life = 0
        paid: list[tuple[int, Decision]] = []
        for index, step in enumerate(self._steps):
            if cost > self._max_costs[index]:
                continue
            part, decision, ttl, admitted = step(after[index], now, cost, skew)
            if admitted:
                after[index] = part
                receipts[index] = decision[7]
                life = max(life, ttl)
                paid.append((index, decision))
                if not self._charges_all:
                    break
        if not paid:
            return self._denied(state, now, cost, skew)
        for index, before in enumerate(after):
            if receipts[index] is None and before is not None:
                life = max(life, self.parts[index].life(before, now, skew))
        index, decision = max(paid, key=lambda charge: charge[1][3])
        return tuple(after), named(self.names[index], decision, tuple(receipts)), life, True

    def charge(self, state: States | None, now: int, due: int, cost: int, skew: int = 0) -> Decided[States]:
        admits = [
            cost <= most and part.earliest(before, due, cost, skew) == due
            for part, before, most in zip(self.parts, state or self._cold, self._max_costs, strict=True)
        ]
        first = admits.index(True)
        pays = admits if self._charges_all else [index == first for index in range(len(admits))]
        return self._charged(state, pays, now, due, cost, skew)

    def earliest(self, state: States | None, at: int, cost: int, skew: int = 0) -> int:
        return min(
            [
                part.earliest(before, at, cost, skew)
                for part, before, most in zip(self.parts, state or self._cold, self._max_costs, strict=True)
                if cost <= most
            ]
        )

    def _binding(self, admit_at: Sequence[int]) -> int:
        return admit_at.index(min(admit_at))

    def _denying(self, seen: Sequence[Decision]) -> int:
        return least_of(seen, lambda decision: decision.retry_after_us)


class AnyOf(_Alternatives):
    """Admits what at least one part admits, and charges those that do; see `any_of`."""

    __slots__ = ()
    kind: ClassVar[str] = "any_of"
    _charges_all: ClassVar[bool] = True

    def _fitting(self, fits: Sequence[int]) -> int:
        return max(fits)

    def _payers(self) -> Sequence[bool]:
        return [True] * len(self.parts)

    def _admitting(self, seen: Sequence[Decision]) -> int:
        return least_of(seen, lambda decision: -decision.remaining if decision.allowed else 1)


class FirstOf(_Alternatives):
    """Charges the first part that admits, and leaves the others alone; see `first_of`."""

    __slots__ = ()
    kind: ClassVar[str] = "first_of"
    _charges_all: ClassVar[bool] = False

    def _fitting(self, fits: Sequence[int]) -> int:
        return sum(fits)

    def _payers(self) -> Sequence[bool]:
        return [index == 0 for index in range(len(self.parts))]

    def _admitting(self, seen: Sequence[Decision]) -> int:
        return least_of(seen, lambda decision: not decision.allowed)


def all_of(**parts: Algorithm[Any]) -> AllOf:
    """Every part must admit, and every part is charged: `all_of(ip=GCRA("5/s"), user=GCRA("100/min"))`."""
    return AllOf(parts)


def any_of(**parts: Algorithm[Any]) -> AnyOf:
    """One part must admit; all that do are charged."""
    return AnyOf(parts)


def first_of(**parts: Algorithm[Any]) -> FirstOf:
    """Alternatives in order of preference: `first_of(main=GCRA("10/s"), overflow=GCRA("2/s"))`."""
    return FirstOf(parts)
