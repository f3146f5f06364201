"""Gate: asks a limit "may this call leave now?", and never waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, TypeAlias

from shapekit._runtime.drivers import TASKS, Driver, Twin, may_be_cancelled, run, stop_if_cancelled
from shapekit.algorithms.base import CHECK, DEBIT, FORECAST, PEEK, REFUND, Algorithm, check_cost
from shapekit.algorithms.compose import Composite
from shapekit.algorithms.ledger import ledgered
from shapekit.algorithms.quota import Quota
from shapekit.clock import Clock
from shapekit.decision import Decision, Forecast
from shapekit.errors import ConfigError, CostExceedsLimitError, QuotaExhaustedError, RateLimitedError
from shapekit.keys import text_of
from shapekit.rate import whole
from shapekit.stores import StoreLike, open_store
from shapekit.stores.base import Key, Store, check_in_force

__all__ = ["Gate"]

GateKey: TypeAlias = str | Mapping[str, str]
"""One key, or for a composite a key for each part by name."""

_ONE = 1
_unnamed = count(1)


class Gate:
    """Asks a limit whether a call may leave now.

        >>> from shapekit import GCRA, Gate
        >>> gate = Gate(GCRA("10/s", burst=1))
        >>> bool(gate.check("alice")), bool(gate.check("alice")), bool(gate.check("bob"))
        (True, False, True)

    Most callers want `check`, which answers, or `require`, which raises. A gate never waits: to wait
    for a slot under the same limit, use a Shaper, `Shaper(gates=(GCRA("10/s"),))`. Every method has an
    awaitable twin, `acheck` and so on.

    `store` is a store, the URL of a Redis, or the path of a SQLite file. Without one, the gate makes a
    MemoryStore, on `clock` if one is given. On a store that other processes share, `name` is required: gates
    of the same name share their keys. The gate closes a store that it made.
    """

    def __init__(
        self,
        strategy: Algorithm[Any],
        *,
        store: StoreLike | None = None,
        clock: Clock | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(strategy, Algorithm):
            raise ConfigError("strategy", strategy, "is not a strategy", 'pass one, such as GCRA("10/s")')
        self.strategy = strategy
        """The limit that the gate counts."""
        self._store, self._owns_store = open_store(store, clock)
        self.name = checked_name(name, self._store, "gate")
        """The name under which the store keeps the gate's keys."""
        self._max_cost = strategy.max_cost
        self._program = ledgered(strategy)
        bound = (self.name, self._program)
        check: Twin[Decision] = self._store.twin(*bound, CHECK)
        self._check, self._acheck = check
        self._check_many = Twin(self._store.bind_many(*bound, CHECK), self._store.abind_many(*bound, CHECK))
        self._peek: Twin[Decision] = self._store.twin(*bound, PEEK)
        self._forecast: Twin[Forecast] = self._store.twin(*bound, FORECAST)
        self._refund: Twin[Decision] = self._store.twin(*bound, REFUND)
        self._debit: Twin[Decision] = self._store.twin(*bound, DEBIT)

    # now?

    def check(self, key: GateKey = "default", *, cost: int = 1) -> Decision:
        """Admit the call and charge its cost, or deny it and charge nothing."""
        place = key if cost is _ONE and key.__class__ is str else run(self._admissible, key, cost)
        return self._check(place, cost)

    async def acheck(self, key: GateKey = "default", *, cost: int = 1) -> Decision:
        """`check`, awaitable."""
        place = key if cost is _ONE and key.__class__ is str else await self._admissible(TASKS, key, cost)
        if not self._store.instant:  # it is awaited, which is a point of cancellation
            return await self._acheck(place, cost)
        if may_be_cancelled():
            await stop_if_cancelled()
        return self._check(place, cost)

    def check_many(self, keys: Iterable[GateKey], *, cost: int = 1) -> list[Decision]:
        """`check` each key in turn, all at one instant; the decisions are in the order of the keys."""
        series = [run(self._admissible, key, cost) for key in _series(keys)]
        return self._check_many.call(series, (cost,))

    async def acheck_many(self, keys: Iterable[GateKey], *, cost: int = 1) -> list[Decision]:
        """`check_many`, awaitable."""
        series = [await self._admissible(TASKS, key, cost) for key in _series(keys)]
        await stop_if_cancelled()
        return await self._check_many.acall(series, (cost,))

    def require(self, key: GateKey = "default", *, cost: int = 1) -> Decision:
        """`check`, but a denial raises RateLimitedError, or QuotaExhaustedError if a quota denies."""
        return self._admitted(key, self.check(key, cost=cost), cost)

    async def arequire(self, key: GateKey = "default", *, cost: int = 1) -> Decision:
        """`require`, awaitable."""
        return self._admitted(key, await self.acheck(key, cost=cost), cost)

    # to look, and to settle

    def peek(self, key: GateKey = "default") -> Decision:
        """The decision that a call of cost 1 would get. Consumes nothing."""
        return self._peek.call(self._place(key))

    async def apeek(self, key: GateKey = "default") -> Decision:
        """`peek`, awaitable."""
        return await self._peek.acall(self._place(key))

    def forecast(self, key: GateKey = "default", *, cost: int = 1) -> Forecast:
        """When a call of `cost` would be admitted, and how many such calls would be now. Consumes nothing."""
        return self._forecast.call(run(self._admissible, key, cost), cost)

    async def aforecast(self, key: GateKey = "default", *, cost: int = 1) -> Forecast:
        """`forecast`, awaitable."""
        return await self._forecast.acall(await self._admissible(TASKS, key, cost), cost)

    def refund(self, key: GateKey, decision: Decision, *, cost: int = 1) -> Decision:
        """Give back `cost` units of what `decision` charged; returns the state of the key.

        Gives back at most what was charged, and nothing that time has restored already. Each decision can be
        refunded once, in whole or in part: a repeated refund, by any process, changes nothing.
        """
        return self._refund.call(self._place(key), whole("cost", cost), self._charge_of(decision))

    async def arefund(self, key: GateKey, decision: Decision, *, cost: int = 1) -> Decision:
        """`refund`, awaitable."""
        return await self._refund.acall(self._place(key), whole("cost", cost), self._charge_of(decision))

    def debit(self, key: GateKey, decision: Decision | None = None, *, cost: int = 1) -> Decision:
        """Charge a call that has already left, even beyond the limit; time repays the debt.

        With the `decision` of an earlier charge, a repeated debit changes nothing, and `any_of` or `first_of`
        charges the parts that paid then. Without a decision, each debit counts. Returns the decision of this
        charge.
        """
        return self._debit.call(*self._debited(key, decision, cost))

    async def adebit(self, key: GateKey, decision: Decision | None = None, *, cost: int = 1) -> Decision:
        """`debit`, awaitable."""
        return await self._debit.acall(*self._debited(key, decision, cost))

    def reset(self, key: GateKey = "default") -> None:
        """Forget the key, as if it had never been used."""
        self._store.reset(self.name, self._program, self._place(key))

    async def areset(self, key: GateKey = "default") -> None:
        """`reset`, awaitable."""
        await self._store.areset(self.name, self._program, self._place(key))

    def close(self) -> None:
        """Close the store if this gate made it."""
        if self._owns_store:
            self._store.close()

    async def aclose(self) -> None:
        """`close`, awaitable."""
        if self._owns_store:
            await self._store.aclose()

    def __repr__(self) -> str:
        return f"Gate({self.strategy!r}, store={self._store!r}, name={self.name!r})"

    async def _admissible(self, driver: Driver, key: GateKey, cost: int) -> Key:
        place = self._place(key)
        try:
            check_cost(cost, self._max_cost, _shown(key), self.strategy.limit_name, self.name)
        except CostExceedsLimitError as error:
            await check_in_force(driver, self._store, self.name, self._program, place, error)
        return place

    def _debited(self, key: GateKey, decision: Decision | None, cost: int) -> tuple[Key, int, Any]:
        return self._place(key), whole("cost", cost), None if decision is None else self._charge_of(decision)

    def _place(self, key: GateKey) -> Key:
        if isinstance(key, str):
            return text_of(key)
        strategy = self.strategy
        if not isinstance(key, Mapping):
            raise ConfigError("key", key, "is neither text nor a mapping", 'pass a str such as "default"')
        if not isinstance(strategy, Composite):
            raise ConfigError("key", key, "has parts, and the strategy has none", "pass one str")
        if set(key) != set(strategy.names) or not all(isinstance(part, str) for part in key.values()):
            names = ", ".join(f"{name}=…" for name in strategy.names)
            raise ConfigError("key", key, "does not give one text for each part", f"pass dict({names})")
        return tuple(text_of(key[name]) for name in strategy.names)

    def _admitted(self, key: GateKey, decision: Decision, cost: int) -> Decision:
        if decision.allowed:
            return decision
        raise self._refusal(decision, cost)(decision, _shown(key), self.name)

    def _refusal(self, decision: Decision, cost: int) -> type[RateLimitedError]:
        part: Algorithm[Any] = self.strategy
        for name in decision.binding.split(".") if decision.binding else ():
            if isinstance(part, Composite):
                part = part.parts[part.names.index(name)]
        if not isinstance(part, Quota) or (part.spread and decision.current + cost <= decision.limit):
            return RateLimitedError
        return QuotaExhaustedError

    def _charge_of(self, decision: Decision) -> Any:
        if not isinstance(decision, Decision) or decision.receipt is None:
            fix = "pass the decision that admitted the call"
            raise ConfigError("decision", decision, "charged nothing", fix)
        if not self._program.owns(decision.receipt):
            raise ConfigError("decision", decision, "is of another strategy", "pass a decision of this gate")
        return decision.receipt


def _series(keys: Iterable[GateKey]) -> Iterable[GateKey]:
    """The keys; ConfigError if they are not a series."""
    if isinstance(keys, str | Mapping) or not isinstance(keys, Iterable):
        raise ConfigError("keys", keys, "is not a series of keys", 'pass a list such as ["alice", "bob"]')
    return keys


def _shown(key: GateKey) -> str:
    """A key as errors show it."""
    return text_of(key) if isinstance(key, str) else str(key)


def checked_name(name: str | None, store: Store, kind: str) -> str:
    """The name as given; without one, a generated name, or ConfigError if the store is shared."""
    if name is None:
        if store.shared:
            fix = f'name what is limited: name="my-{kind}"'
            raise ConfigError("name", name, "is missing, and other processes share the store", fix)
        return f"{kind}-{next(_unnamed)}"
    if not isinstance(name, str) or not name:
        raise ConfigError("name", name, "is not a text", f'pass a str such as "my-{kind}"')
    return str.__str__(name)
