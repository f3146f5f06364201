"""Constraints: further limits that a departure has to meet, charged together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from typing import Any, TypeAlias

from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.compose import adopted
from shapekit.algorithms.gcra import GCRA
from shapekit.algorithms.quota import Quota, rolling_window
from shapekit.decision import Decision, Receipt
from shapekit.errors import ConfigError
from shapekit.rate import Rate

States: TypeAlias = tuple[Any, ...]
Receipts: TypeAlias = tuple[Receipt, ...]


@dataclass(frozen=True, slots=True, init=False)
class Constraints:
    """Algorithms in a row; their states are a tuple in the same order."""

    algorithms: tuple[Algorithm[Any], ...]
    civil: bool = field(repr=False, compare=False)
    cold: tuple[None, ...] = field(repr=False, compare=False)
    _quotas: tuple[int, ...] = field(repr=False, compare=False)
    _others: tuple[int, ...] = field(repr=False, compare=False)

    def __init__(self, algorithms: Sequence[Algorithm[Any]]) -> None:
        for algorithm in algorithms:
            if not isinstance(algorithm, Algorithm):
                raise ConfigError("gates", algorithm, "is not a strategy", 'write gates=(GCRA("10/s"),)')
        is_quota = [isinstance(algorithm, Quota) for algorithm in algorithms]
        for name, value in (
            ("algorithms", tuple(algorithms)),
            ("civil", any(algorithm.civil for algorithm in algorithms)),
            ("cold", (None,) * len(algorithms)),
            ("_quotas", tuple(index for index, quota in enumerate(is_quota) if quota)),
            ("_others", tuple(index for index, quota in enumerate(is_quota) if not quota)),
        ):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.algorithms)

    def max_cost(self, otherwise: int) -> int:
        """The largest cost that all of them can ever admit."""
        return min([otherwise, *(algorithm.max_cost for algorithm in self.algorithms)])

    def departure(self, states: States, at: int, cost: int, skew: int) -> tuple[int, Decision | None]:
        """The first instant from `at` on that all admit; with what a quota says, if it moved that."""
        unspent = self._fitting(self._others, states, at, cost, skew)
        if not self._quotas:
            return unspent, None
        due = self._fitting(range(len(states)), states, unspent, cost, skew)
        for index in self._quotas:
            quota, before = self.algorithms[index], states[index]
            if quota.earliest(before, unspent, cost, skew) > unspent:
                denial = quota.check(before, unspent, cost, skew).decision
                return due, denial._replace(binding=quota.kind)
        return due, None

    def charge(self, states: States, due: int, cost: int, skew: int) -> tuple[States, Receipts, int]:
        """The states after a departure that all admit, the receipts, and how long the states live."""
        charged = [
            algorithm.decide(before, due, cost, skew)
            for algorithm, before in zip(self.algorithms, states, strict=True)
        ]
        return (
            tuple([outcome[0] for outcome in charged]),
            tuple([outcome[1].receipt for outcome in charged]),
            max([outcome[2] for outcome in charged]),
        )

    def refund(self, states: States, at: int, cost: int, receipts: Receipts, skew: int) -> States:
        """The states after `cost` was given back to the charges with these receipts."""
        if cost == 0 or not receipts:
            return states
        return tuple(
            algorithm.refund(before, at, cost, receipt, skew).state
            for algorithm, before, receipt in zip(self.algorithms, states, receipts, strict=True)
        )

    def debit(self, states: States, at: int, cost: int, receipts: Receipts, skew: int) -> States:
        """The states after `cost` more was charged without asking."""
        return tuple(
            algorithm.debit(before, at, cost, receipt, skew).state
            for algorithm, before, receipt in zip(self.algorithms, states, receipts, strict=True)
        )

    def full_at(self, states: States, at: int, skew: int) -> int:
        """When all states are as good as cold."""
        return max(
            [
                algorithm.forecast(before, at, 1, skew).full_at_us
                for algorithm, before in zip(self.algorithms, states, strict=True)
            ],
            default=at,
        )

    def adopt(self, states: States, writer: Constraints) -> States:
        """States that other constraints left: those of the same place and kind go on."""
        written = [*zip(writer.algorithms, states, strict=True)]
        kept: list[Any] = []
        for index, algorithm in enumerate(self.algorithms):
            old, state = written[index] if index < len(written) else (algorithm, None)
            kept.append(adopted(algorithm, state, old) if algorithm.kind == old.kind else None)
        return tuple(kept)

    def _fitting(self, which: Sequence[int], states: States, at: int, cost: int, skew: int) -> int:
        while True:
            later = at
            for index in which:
                later = self.algorithms[index].earliest(states[index], later, cost, skew)
            if later == at:
                return at
            at = later


def unpaced(rate: Rate, part: Fraction) -> Algorithm[Any]:
    """A part of a rate that is not paced: any window of its period, or a meter where it names a burst."""
    if rate.burst is not None:
        return GCRA(slowed(rate, part), rate.burst)
    return rolling_window(max(1, int(rate.limit * part)), timedelta(microseconds=rate.period_us))


def slowed(rate: Rate, part: Fraction) -> Rate:
    """A part of a rate, exactly."""
    return Rate.of(rate.limit * part.numerator, rate.period_us * part.denominator)
