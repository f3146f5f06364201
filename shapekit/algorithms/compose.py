"""Composites: several limits decided together, none or all.

`all_of` admits what every part admits, `any_of` what at least one admits (those that do are
charged), `first_of` charges the first part that admits and leaves the others alone. Parts are computed
first and committed only then, so a denial leaves no part charged. Composites nest.

The decision is that of the *binding* part and names it (`outer.inner` where nested): the one with the
least remaining when all admit, the most when any does; the longest wait when `all_of` denies, the
shortest when the others do. Ties go to the first.

    >>> from shapekit import GCRA, Quota, all_of
    >>> limit = all_of(second=GCRA("10/s"), month=Quota("1000/month"))
    >>> limit.check(None, 0, 1).decision.binding
    'second'
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import NEVER_US, Algorithm, Decided, Outcome
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError

__all__ = ["AllOf", "AnyOf", "FirstOf", "all_of", "any_of", "first_of"]

States: TypeAlias = tuple[Any, ...]

_new = tuple.__new__


@dataclass(frozen=True, slots=True, init=False)
class Composite(Algorithm[States]):
    """Named parts; the state is the tuple of their states."""

    names: tuple[str, ...]
    parts: tuple[Algorithm[Any], ...]
    _cold: States = field(repr=False, compare=False)
    _max_costs: tuple[int, ...] = field(repr=False, compare=False)
    _steps: tuple[Callable[..., Decided[Any]], ...] = field(repr=False, compare=False)
    _civil: bool = field(repr=False, compare=False)

    def __init__(self, parts: dict[str, Algorithm[Any]]) -> None:
        if len(parts) < 2:
            raise ConfigError(self.kind, list(parts), "has less than two parts", f"{self.kind}(a=…, b=…)")
        for name, part in parts.items():
            if not isinstance(part, Algorithm):
                raise ConfigError(name, part, "is not a strategy", 'pass one, such as GCRA("10/s")')
            if not name.isidentifier():
                raise ConfigError("name", name, "is not an identifier", "name the part as in ip=GCRA(…)")
        for field_name, value in (
            ("names", tuple(parts)),
            ("parts", tuple(parts.values())),
            ("_cold", (None,) * len(parts)),
            ("_max_costs", tuple(part.max_cost for part in parts.values())),
            ("_steps", tuple(part.decide for part in parts.values())),
            ("_civil", any(part.civil for part in parts.values())),
        ):
            object.__setattr__(self, field_name, value)

    @property
    def civil(self) -> bool:
        return self._civil

    def refund(
        self, state: States | None, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[States]:
        receipts = charged_at if isinstance(charged_at, tuple) else (charged_at,) * len(self.parts)
        return self._settle(
            state,
            now,
            skew,
            [
                None if receipt is None else part.refund(before, now, cost, receipt, skew)
                for part, before, receipt in zip(self.parts, state or self._cold, receipts, strict=True)
            ],
        )

    def debit(
        self, state: States | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[States]:
        receipts = charged_at if isinstance(charged_at, tuple) else self._payers()
        return self._settle(
            state,
            now,
            skew,
            [
                None if receipt is None else part.debit(before, now, cost, receipt, skew)
                for part, before, receipt in zip(self.parts, state or self._cold, receipts, strict=True)
            ],
        )

    def peek(self, state: States | None, now: int, skew: int = 0) -> Decision:
        seen = [
            part.peek(before, now, skew) for part, before in zip(self.parts, state or self._cold, strict=True)
        ]
        wait = self.earliest(state, now, 1, skew) - now
        binding = self._admitting(seen) if wait == 0 else self._denying(seen)
        return self._told(seen[binding], binding, allowed=wait == 0, retry_after_us=wait)

    def forecast(self, state: States | None, now: int, cost: int, skew: int = 0) -> Forecast:
        states = state or self._cold
        fits = [
            part.forecast(before, now, cost, skew).fits_now if cost <= most else 0
            for part, before, most in zip(self.parts, states, self._max_costs, strict=True)
        ]
        full = [
            part.forecast(before, now, 1, skew).full_at_us
            for part, before in zip(self.parts, states, strict=True)
        ]
        return Forecast(self.earliest(state, now, cost, skew), self._fitting(fits), max(full))

    def scaled(self, share: float | Fraction) -> Self:
        return type(self)(
            {name: part.scaled(share) for name, part in zip(self.names, self.parts, strict=True)}
        )

    def adopt(self, state: States, writer: Any) -> States:
        old = dict(zip(writer.names, zip(writer.parts, state, strict=True), strict=True))
        return tuple(
            adopted(part, *reversed(old[name])) if name in old else None
            for name, part in zip(self.names, self.parts, strict=True)
        )

    @abstractmethod
    def _payers(self) -> tuple[int | None, ...]:
        """A mark for each part that pays where no receipt says which."""

    @abstractmethod
    def _admitting(self, seen: Sequence[Decision]) -> int:
        """The binding part of an admission."""

    @abstractmethod
    def _denying(self, seen: Sequence[Decision]) -> int:
        """The binding part of a denial."""

    @abstractmethod
    def _fitting(self, fits: Sequence[int]) -> int:
        """How many calls fit, given how many fit into each part."""

    def _told(self, decision: Decision, binding: int, **changes: Any) -> Decision:
        return _named(self.names[binding], decision, None)._replace(**changes)

    def _denied(self, state: States | None, now: int, cost: int, skew: int) -> Decided[States]:
        seen = [
            step(before, now, cost, skew)[1] if cost <= most else _out_of_reach(part.peek(before, now, skew))
            for step, part, before, most in zip(
                self._steps, self.parts, state or self._cold, self._max_costs, strict=True
            )
        ]
        wait = self.earliest(state, now, cost, skew) - now
        binding = self._denying(seen)
        return state, self._told(seen[binding], binding, retry_after_us=wait), 0, False

    def _settle(
        self, state: States | None, now: int, skew: int, outcomes: Sequence[Outcome[Any] | None]
    ) -> Outcome[States]:
        changed = [outcome is not None and outcome.persist for outcome in outcomes]
        if not any(changed):
            return Outcome(state, self.peek(state, now, skew), 0, False)
        after = tuple(
            outcome.state if outcome is not None and outcome.persist else before
            for before, outcome in zip(state or self._cold, outcomes, strict=True)
        )
        ttl = self.forecast(after, now, 1, skew).full_at_us - now
        return Outcome(after, self.peek(after, now, skew), max(0, ttl), True)


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
        return tuple(after), _named(self.names[binding], decisions[binding], receipts), life, True

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

    def _fitting(self, fits: Sequence[int]) -> int:
        return min(fits)

    def _payers(self) -> tuple[int | None, ...]:
        return (0,) * len(self.parts)

    def _admitting(self, seen: Sequence[Decision]) -> int:
        return _least(seen, lambda decision: decision.remaining)

    def _denying(self, seen: Sequence[Decision]) -> int:
        return _least(seen, lambda decision: -decision.retry_after_us)


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
        index, decision = max(paid, key=lambda charge: charge[1][3])
        return tuple(after), _named(self.names[index], decision, tuple(receipts)), life, True

    def earliest(self, state: States | None, at: int, cost: int, skew: int = 0) -> int:
        return min(
            [
                part.earliest(before, at, cost, skew)
                for part, before, most in zip(self.parts, state or self._cold, self._max_costs, strict=True)
                if cost <= most
            ]
        )

    def _denying(self, seen: Sequence[Decision]) -> int:
        return _least(seen, lambda decision: decision.retry_after_us)


class AnyOf(_Alternatives):
    """Admits what at least one part admits, and charges those that do; see `any_of`."""

    __slots__ = ()
    kind: ClassVar[str] = "any_of"
    _charges_all: ClassVar[bool] = True

    def _fitting(self, fits: Sequence[int]) -> int:
        return max(fits)

    def _payers(self) -> tuple[int | None, ...]:
        return (0,) * len(self.parts)

    def _admitting(self, seen: Sequence[Decision]) -> int:
        return _least(seen, lambda decision: -decision.remaining if decision.allowed else 1)


class FirstOf(_Alternatives):
    """Charges the first part that admits, and leaves the others alone; see `first_of`."""

    __slots__ = ()
    kind: ClassVar[str] = "first_of"
    _charges_all: ClassVar[bool] = False

    def _fitting(self, fits: Sequence[int]) -> int:
        return sum(fits)

    def _payers(self) -> tuple[int | None, ...]:
        return (0, *(None,) * (len(self.parts) - 1))

    def _admitting(self, seen: Sequence[Decision]) -> int:
        return _least(seen, lambda decision: not decision.allowed)


def _named(name: str, decision: Decision, receipt: Receipt) -> Decision:
    """The decision of a part, as that of the whole."""
    inner = decision[6]
    binding = name if inner is None else f"{name}.{inner}"
    return _new(Decision, (*decision[:6], binding, receipt, 0))


def _out_of_reach(decision: Decision) -> Decision:
    """What a part says that can never admit the cost."""
    return decision._replace(allowed=False, retry_after_us=NEVER_US)


def _least(seen: Sequence[Decision], weight: Callable[[Decision], int]) -> int:
    weights = [weight(decision) for decision in seen]
    return weights.index(min(weights))


def adopted(reader: Any, state: Any, writer: Any) -> Any:
    """A state that `writer` left, as a state of `reader`; ConfigError if they are of different kinds."""
    if state is None or reader is writer or reader == writer:
        return state
    if reader.kind != writer.kind:
        raise ConfigError(
            "strategy",
            reader.kind,
            f"cannot continue the state of a {writer.kind}",
            "use another name, or reset it",
        )
    return reader.adopt(state, writer)


def all_of(**parts: Algorithm[Any]) -> AllOf:
    """Every part must admit, and every part is charged: `all_of(ip=GCRA("5/s"), user=GCRA("100/min"))`."""
    return AllOf(parts)


def any_of(**parts: Algorithm[Any]) -> AnyOf:
    """One part must admit; all that do are charged."""
    return AnyOf(parts)


def first_of(**parts: Algorithm[Any]) -> FirstOf:
    """Alternatives in order of preference: `first_of(main=GCRA("10/s"), overflow=GCRA("2/s"))`."""
    return FirstOf(parts)
