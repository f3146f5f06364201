"""Composites: several limits decided together, all or nothing.

`all_of` admits a call if every part does. `any_of` admits it if at least one part does, and charges each part
that admits it. `first_of` charges the first part that admits the call and leaves the others alone. All parts
are computed before any is committed, so a denial charges no part. Composites nest.

The decision is the one of the *binding* part and names it (`outer.inner` if nested). On admission, `all_of`
binds to the part with the least remaining, the others to the one with the most; on denial, `all_of` binds to
the part with the longest wait, the others to the one with the shortest. Ties go to the first part. If a quota
binds, the composite is spent.

    >>> from shapekit import GCRA, Quota, all_of
    >>> limit = all_of(second=GCRA("10/s"), month=Quota("1000/month"))
    >>> limit.check(None, 0, 1).decision.binding
    'second'

Composite: what all_of, any_of and first_of share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Self, TypeAlias

from shapekit.algorithms.base import NEVER_US, Algorithm, Bounds, Decided, Leaf, Outcome, Shift, Stepped
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.decision import Decision, Forecast, Receipt
from shapekit.errors import ConfigError

__all__ = ["AllOf", "AnyOf", "FirstOf", "all_of", "any_of", "first_of"]

States: TypeAlias = tuple[Any, ...]

_ROLLING = {SlidingWindowLog.kind, SlidingWindow.kind}

_new = tuple.__new__


class Composite(Algorithm[States]):
    """Named parts that are decided together; the state is the tuple of their states."""

    fields = ("names", "parts")
    __slots__ = (*fields, "_cold", "_max_costs", "_steps", "_civil")

    names: tuple[str, ...]
    parts: tuple[Algorithm[Any], ...]
    _cold: States
    _max_costs: tuple[int, ...]
    _steps: tuple[Callable[..., Decided[Any]], ...]
    _civil: bool

    _binds: ClassVar[Any]
    """`max` or `min`: combines when each part admits, or how long each makes a call wait."""
    _fitting: ClassVar[Any]
    """Combines how many calls fit into each part to how many fit."""

    def __init__(self, parts: dict[str, Algorithm[Any]]) -> None:
        if len(parts) < 2:
            raise ConfigError(self.kind, list(parts), "has fewer than two parts", "give it two or more")
        for name, part in parts.items():
            if not isinstance(part, Algorithm):
                raise ConfigError(name, part, "is not a strategy", 'pass one, such as GCRA("10/s")')
            if not name.isidentifier():
                raise ConfigError("name", name, "is not an identifier", "name the part as in ip=GCRA(…)")
        self._fill(
            names=tuple(parts),
            parts=tuple(parts.values()),
            _cold=(None,) * len(parts),
            _max_costs=tuple(part.max_cost for part in parts.values()),
            _steps=tuple(part.decide for part in parts.values()),
            _civil=any(part.civil for part in parts.values()),
        )

    @property
    def uncharged(self) -> Receipt:
        return (None,) * len(self.parts)

    def owns(self, receipt: Receipt) -> bool:
        return (
            isinstance(receipt, tuple)
            and len(receipt) == len(self.parts)
            and all(own is None or part.owns(own) for part, own in zip(self.parts, receipt, strict=True))
        )

    @property
    def civil(self) -> bool:
        return self._civil

    @property
    def aligned(self) -> bool:
        return any(part.aligned for part in self.parts)

    def leaves(self, state: Any, at: int, skew: int, name: str = "") -> Iterator[Leaf]:
        states = self._cold if state is None else state
        for part_name, part, own in zip(self.names, self.parts, states, strict=True):
            yield from part.leaves(own, at, skew, f"{name}.{part_name}" if name else part_name)

    def inspect(self, state: Any) -> None:
        each(self.parts, "inspect", state)

    def twin(self, instants: Sequence[int] = ()) -> list[Any]:
        return ["compose", self.kind, " ".join(self.names), [part.twin(instants) for part in self.parts]]

    def state_sent(self, state: States) -> Any:
        return each(self.parts, "state_sent", state)

    def state_received(self, sent: Any) -> States:
        return tuple(each(self.parts, "state_received", sent))

    def receipt_sent(self, receipt: Receipt) -> Any:
        # Without a receipt, a debit is paid by the default payers, and a refund goes to no part.
        if receipt is None or (not isinstance(receipt, tuple) and not any(self._surely_paid())):
            return None
        return each(self.parts, "receipt_sent", self._receipts(receipt, [receipt] * len(self.parts)))

    def receipt_received(self, sent: Any) -> Receipt:
        return tuple(each(self.parts, "receipt_received", sent))

    def refund(
        self, state: States | None, now: int, cost: int, charged_at: Receipt, skew: int = 0
    ) -> Outcome[States]:
        receipts = self._receipts(charged_at, [charged_at if pays else None for pays in self._surely_paid()])
        return self._settled("refund", state, now, cost, receipts, skew)

    def refund_last(
        self,
        state: States | None,
        now: int,
        cost: int,
        charged_at: Receipt,
        skew: int = 0,
        before: int | None = None,
    ) -> States | None:
        if state is None or not isinstance(charged_at, tuple):
            return self.refund(state, now, cost, charged_at, skew).state
        return tuple(
            [
                own if receipt is None else part.refund_last(own, now, cost, receipt, skew, before)
                for part, own, receipt in zip(self.parts, state, charged_at, strict=True)
            ]
        )

    def debit(
        self, state: States | None, now: int, cost: int, charged_at: Receipt = None, skew: int = 0
    ) -> Outcome[States]:
        receipts = self._receipts(charged_at, [0 if pays else None for pays in self._payers()])
        return self._settled("debit", state, now, cost, receipts, skew)

    def peek(self, state: States | None, now: int, skew: int = 0) -> Decision:
        seen = [
            part.peek(before, now, skew) for part, before in zip(self.parts, state or self._cold, strict=True)
        ]
        wait = self.earliest(state, now, 1, skew) - now
        binding = self._admitting(seen) if wait == 0 else self._denying(seen)
        return self._with_name(seen[binding], binding, allowed=wait == 0, retry_after_us=wait)

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

    def life(self, state: States, now: int, skew: int = 0) -> int:
        return max(
            [
                part.life(own, now, skew)
                for part, own in zip(self.parts, state, strict=True)
                if own is not None
            ],
            default=0,
        )

    def spent(self, state: States | None, at: int, cost: int, skew: int = 0) -> bool:
        # The binding part decides: no call waits for the others.
        states = state or self._cold
        admit_at = [
            part.earliest(before, at, cost, skew) if cost <= most else NEVER_US
            for part, before, most in zip(self.parts, states, self._max_costs, strict=True)
        ]
        binding = admit_at.index(self._binds(admit_at))
        return self.parts[binding].spent(states[binding], at, cost, skew)

    def scaled(self, share: float | Fraction) -> Self:
        return type(self)(
            {name: part.scaled(share) for name, part in zip(self.names, self.parts, strict=True)}
        )

    def adopt(self, state: States, writer: Any, now: int, skew: int = 0) -> States:
        old = dict(zip(writer.names, zip(state, writer.parts, strict=True), strict=True))
        return tuple(
            adopted(part, old[name][0], old[name][1], now, skew) if name in old else None
            for name, part in zip(self.names, self.parts, strict=True)
        )

    def shifted(self, state: States, moved: Shift, skew: int) -> States:
        return tuple(
            [
                own and part.shifted(own, self._own_shift(part, moved, skew), skew)
                for part, own in zip(self.parts, state, strict=True)
            ]
        )

    def crowded(self, state: States, moved: Shift, skew: int) -> Iterator[tuple[Bounds, int]]:
        for part, own in zip(self.parts, state, strict=True):
            if own is not None:
                yield from part.crowded(own, self._own_shift(part, moved, skew), skew)

    def resumed(self, state: States, newest: int) -> States:
        return tuple(each(self.parts, "resumed", state, newest))

    def rescheduled(self, state: States, newest: int, when: Callable[[int], int]) -> States:
        return tuple(each(self.parts, "rescheduled", state, newest, when))

    def moved_receipt(self, receipt: Receipt, when: Callable[[int], int] | None) -> Receipt:
        if not isinstance(receipt, tuple):
            return receipt
        return tuple([part.moved_receipt(own, when) for part, own in zip(self.parts, receipt, strict=True)])

    def brought(self, state: States, now: int, skew: int = 0) -> States:
        return tuple(each(self.parts, "brought", state, now, skew))

    def _own_shift(self, part: Algorithm[Any], moved: Shift, skew: int) -> Shift:
        """How calls move on the timeline of a part: beside a fixed window, periods go by civil time all the
        same.
        """
        return moved.later(skew) if self.aligned and not part.aligned else moved

    def _receipts(self, charged_at: Receipt, otherwise: Sequence[Receipt]) -> Sequence[Receipt]:
        if not isinstance(charged_at, tuple):
            return otherwise
        if len(charged_at) != len(self.parts):
            fix = "pass this gate's decision"
            raise ConfigError("decision", charged_at, f"is not of these {len(self.parts)} parts", fix)
        return charged_at

    def _payers(self) -> Sequence[bool]:
        """Which parts pay if there is no receipt."""
        return [True] * len(self.parts)

    def _surely_paid(self) -> Sequence[bool]:
        """Which parts have certainly paid if there is no receipt."""
        return [False] * len(self.parts)

    @abstractmethod
    def _admitting(self, seen: Sequence[Decision]) -> int:
        """The binding part of an admission."""

    def _denying(self, seen: Sequence[Decision]) -> int:
        """The binding part of a denial."""
        waits = [decision.retry_after_us for decision in seen]
        return waits.index(self._binds(waits))

    def _with_name(self, decision: Decision, binding: int, **changes: Any) -> Decision:
        return named(self.names[binding], decision, None)._replace(**changes)

    def _charged(
        self, state: States | None, pays: Sequence[bool], now: int, due: int, cost: int, skew: int
    ) -> Decided[States]:
        outcomes: list[Decided[Any] | Stepped[Any, None]] = []
        for part, before, paying in zip(self.parts, state or self._cold, pays, strict=True):
            if paying:
                outcomes.append(part.charge(before, now, due, cost, skew))
            else:
                life = 0 if before is None else part.life(before, now, skew)
                outcomes.append((before, None, life, False))
        paid = [
            (decision, name)
            for (_, decision, _, _), name in zip(outcomes, self.names, strict=True)
            if decision
        ]
        binding = self._admitting([decision for decision, _ in paid])
        receipts = tuple(None if decision is None else decision.receipt for _, decision, _, _ in outcomes)
        return (
            tuple(after for after, _, _, _ in outcomes),
            named(paid[binding][1], paid[binding][0], receipts),
            max(ttl for _, _, ttl, _ in outcomes),
            True,
        )

    def _denied(self, state: States | None, now: int, cost: int, skew: int) -> Decided[States]:
        seen = [
            step(before, now, cost, skew)[1] if cost <= most else _out_of_reach(part.peek(before, now, skew))
            for step, part, before, most in zip(
                self._steps, self.parts, state or self._cold, self._max_costs, strict=True
            )
        ]
        wait = self.earliest(state, now, cost, skew) - now
        binding = self._denying(seen)
        return state, self._with_name(seen[binding], binding, retry_after_us=wait), 0, False

    def _settled(
        self, how: str, state: States | None, now: int, cost: int, receipts: Sequence[Receipt], skew: int
    ) -> Outcome[States]:
        """The outcome of a refund or a debit of each part that has a receipt for it."""
        outcomes: list[Outcome[Any] | None] = [
            None if receipt is None else getattr(part, how)(before, now, cost, receipt, skew)
            for part, before, receipt in zip(self.parts, state or self._cold, receipts, strict=True)
        ]
        changed = [outcome is not None and outcome.persist for outcome in outcomes]
        if not any(changed):
            return Outcome(state, self.peek(state, now, skew), 0, False)
        after = tuple(
            outcome.state if outcome is not None and outcome.persist else before
            for before, outcome in zip(state or self._cold, outcomes, strict=True)
        )
        ttl = self.life(after, now, skew)
        own = tuple(None if outcome is None else outcome.decision.receipt for outcome in outcomes)
        receipt = own if any(one is not None for one in own) else None
        standing = self.peek(after, now, skew)._replace(receipt=receipt)
        return Outcome(after, standing, ttl, True)


def named(name: str, decision: Decision, receipt: Receipt) -> Decision:
    """The decision of a part as the decision of the whole."""
    allowed, limit, current, remaining, full, wait, inner, _, _ = decision
    binding = name if inner is None else f"{name}.{inner}"
    return _new(Decision, (allowed, limit, current, remaining, full, wait, binding, receipt, 0))


def _out_of_reach(decision: Decision) -> Decision:
    """The decision of a part that can never admit the cost."""
    return decision._replace(allowed=False, retry_after_us=NEVER_US)


def least_of(seen: Sequence[Decision], weight: Callable[[Decision], int]) -> int:
    """The index of the first decision with the least weight."""
    weights = [weight(decision) for decision in seen]
    return weights.index(min(weights))


def each(algorithms: Sequence[Algorithm[Any]], method: str, values: Sequence[Any], *args: Any) -> list[Any]:
    """Call the method of each algorithm with its own value; None stays None."""
    return [
        None if own is None else getattr(algorithm, method)(own, *args)
        for algorithm, own in zip(algorithms, values, strict=True)
    ]


def of_one_kind(kind: str, other: str) -> bool:
    """Whether a program of one kind can continue the state of the other, as rolling windows can."""
    return kind == other or {kind, other} <= _ROLLING


def adopted(reader: Any, state: Any, writer: Any, now: int, skew: int) -> Any:
    """A state that `writer` left, as a state of `reader`; ConfigError if they are of different kinds."""
    if state is None or reader is writer or reader == writer:
        return state
    if not of_one_kind(reader.kind, writer.kind):
        fix = "use another name, or reset it"
        raise ConfigError("strategy", reader.kind, f"cannot continue the state of a {writer.kind}", fix)
    if isinstance(reader, Algorithm) and reader.alone(None)[0] is reader:
        # A limit without a ledger continues from the count in the ledger.
        writer, state = writer.alone(state)
        if reader == writer:
            return state
    return reader.adopt(state, writer, now, skew)


class AllOf(Composite):
    """Admits a call if every part does; see `all_of`."""

    __slots__ = ()
    kind: ClassVar[str] = "all_of"
    _binds: ClassVar[Any] = max
    _fitting: ClassVar[Any] = min

    @property
    def max_cost(self) -> int:
        return min(self._max_costs)

    def decide(self, state: States | None, now: int, cost: int, skew: int = 0) -> Decided[States]:
        after: list[Any] = []
        receipts: list[Receipt] = []
        binding: Any = None
        by = ""
        least, life = NEVER_US, 0
        for name, step, before in zip(self.names, self._steps, state or self._cold):  # noqa: B905 - for speed
            part, decision, ttl, admitted = step(before, now, cost, skew)
            if not admitted:
                return self._denied(state, now, cost, skew)
            after.append(part)
            receipts.append(decision[7])
            if decision[3] < least:
                least, binding, by = decision[3], decision, name
            if ttl > life:
                life = ttl
        return tuple(after), named(by, binding, tuple(receipts)), life, True

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

    def _surely_paid(self) -> Sequence[bool]:
        return self._payers()

    def _admitting(self, seen: Sequence[Decision]) -> int:
        return least_of(seen, lambda decision: decision.remaining)


class _Alternatives(Composite):
    """Admits a call if at least one part does."""

    __slots__ = ()
    _charges_all: ClassVar[bool]
    _binds: ClassVar[Any] = min

    @property
    def max_cost(self) -> int:
        return max(self._max_costs)

    def decide(self, state: States | None, now: int, cost: int, skew: int = 0) -> Decided[States]:
        after: list[Any] = []
        receipts: list[Receipt] = []
        life = 0
        binding, by = None, ""
        for name, step, most, part, before in zip(  # noqa: B905 - for speed
            self.names, self._steps, self._max_costs, self.parts, state or self._cold
        ):
            if cost <= most and (binding is None or self._charges_all):
                own, decision, ttl, admitted = step(before, now, cost, skew)
                if admitted:
                    after.append(own)
                    receipts.append(decision[7])
                    if ttl > life:
                        life = ttl
                    if binding is None or decision[3] > binding[3]:
                        binding, by = decision, name
                    continue
            after.append(before)
            receipts.append(None)
            if before is not None and (ttl := part.life(before, now, skew)) > life:
                life = ttl
        if binding is None:
            return self._denied(state, now, cost, skew)
        return tuple(after), named(by, binding, tuple(receipts)), life, True

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


class AnyOf(_Alternatives):
    """Admits a call if at least one part does, and charges every part that admits it; see `any_of`."""

    __slots__ = ()
    kind: ClassVar[str] = "any_of"
    _charges_all: ClassVar[bool] = True
    _fitting: ClassVar[Any] = max

    def _admitting(self, seen: Sequence[Decision]) -> int:
        return least_of(seen, lambda decision: -decision.remaining if decision.allowed else 1)


class FirstOf(_Alternatives):
    """Charges the first part that admits a call, and leaves the others alone; see `first_of`."""

    __slots__ = ()
    kind: ClassVar[str] = "first_of"
    _charges_all: ClassVar[bool] = False
    _fitting: ClassVar[Any] = sum

    def _payers(self) -> Sequence[bool]:
        return [index == 0 for index in range(len(self.parts))]

    def _admitting(self, seen: Sequence[Decision]) -> int:
        return least_of(seen, lambda decision: not decision.allowed)


def all_of(*parts: Algorithm[Any], **named: Algorithm[Any]) -> AllOf:
    """Combine limits so that every part must admit, and every part is charged.

    `all_of(ip=GCRA("5/s"), user=GCRA("100/min"))`. Names identify the parts in decisions and keys. A part
    without a name is named after its kind: `gcra`, and a second one `gcra_2`.
    """
    return AllOf(_named(parts, named))


def any_of(*parts: Algorithm[Any], **named: Algorithm[Any]) -> AnyOf:
    """Combine limits so that one part must admit; every part that admits is charged."""
    return AnyOf(_named(parts, named))


def first_of(*parts: Algorithm[Any], **named: Algorithm[Any]) -> FirstOf:
    """Combine limits in order of preference: `first_of(main=GCRA("10/s"), overflow=GCRA("2/s"))`.

    Only the first part that admits is charged.
    """
    return FirstOf(_named(parts, named))


def _named(parts: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """All parts by name, positional ones first."""
    by_name: dict[str, Any] = {}
    for part in parts:
        kind = getattr(part, "kind", "part")
        names = (kind, *(f"{kind}_{number}" for number in range(2, len(parts) + len(named) + 2)))
        by_name[next(name for name in names if name not in by_name and name not in named)] = part
    return by_name | named
