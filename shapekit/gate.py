"""Gate: a limit on a store, asked "now?"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeAlias

from shapekit.alarm import shielded
from shapekit.algorithms.base import Algorithm, check_cost
from shapekit.algorithms.composite import Composite
from shapekit.algorithms.quota import Quota
from shapekit.clock import Clock
from shapekit.decision import Decision, Forecast
from shapekit.errors import (
    ConfigError,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    StoreUnavailableError,
)
from shapekit.rate import SECOND_US, Duration, whole
from shapekit.stores.base import Key, Store
from shapekit.stores.memory import MemoryStore
from shapekit.waiting import Waiters, max_wait_us

__all__ = ["Gate"]

GateKey: TypeAlias = str | Mapping[str, str]
"""One key, or for a composite a key for each part by name."""

_ONE = 1
_unnamed = count(1)


class Gate:
    """Says whether a call may leave now.

        >>> from shapekit import GCRA, Gate
        >>> gate = Gate(GCRA("10/s", burst=1))
        >>> bool(gate.check("alice")), bool(gate.check("alice")), bool(gate.check("bob"))
        (True, False, True)

    Most callers want `check`, which answers, or `require`, which raises. `schedule` takes the
    earliest turn and sleeps until it comes: first come first served, one sleep, no polling. Every
    method has an awaitable twin, `acheck` and so on.

    Without a store the gate makes a MemoryStore, on `clock` if one is given. A store that other
    processes share needs a `name`, under which they find the same keys.
    """

    def __init__(
        self,
        strategy: Algorithm[Any],
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(strategy, Algorithm):
            raise ConfigError("strategy", strategy, "is not a strategy", 'pass one, such as GCRA("10/s")')
        self.strategy = strategy
        self._owns_store = store is None
        self._store = open_store(store, clock)
        self.name = checked_name(name, self._store, "gate")
        self._max_cost = strategy.max_cost
        self._waiters = Waiters(self._store.clock, f"gate {self.name!r}")
        bound = (self.name, strategy)
        self._check = self._store.bind(*bound, "check")
        self._acheck = self._store.abind(*bound, "check")
        self._peek = self._store.bind(*bound, "peek")
        self._apeek = self._store.abind(*bound, "peek")
        self._forecast = self._store.bind(*bound, "forecast")
        self._aforecast = self._store.abind(*bound, "forecast")
        self._refund = self._store.bind(*bound, "refund")
        self._arefund = self._store.abind(*bound, "refund")
        self._debit = self._store.bind(*bound, "debit")
        self._adebit = self._store.abind(*bound, "debit")
        self._commit = self._store.bind(*bound, "commit")
        self._acommit = self._store.abind(*bound, "commit")
        self._check_many = self._store.bind_many(*bound, "check")
        self._acheck_many = self._store.abind_many(*bound, "check")

    # now?

    def check(self, key: GateKey = "default", *, cost: int = 1) -> Decision:
        """Admit and charge, or deny and leave everything as it was."""
        place = key if cost is _ONE and key.__class__ is str else self._admissible(key, cost)
        decision: Decision = self._check(place, cost)
        return decision

    async def acheck(self, key: GateKey = "default", *, cost: int = 1) -> Decision:
        """`check`, awaitable."""
        place = key if cost is _ONE and key.__class__ is str else self._admissible(key, cost)
        decision: Decision = await self._acheck(place, cost)
        return decision

    def check_many(self, keys: Iterable[GateKey], *, cost: int = 1) -> list[Decision]:
        """`check` for each key in turn, all at one instant; the order of the keys is the answers'."""
        return self._check_many(self._series(keys, cost), (cost,))

    async def acheck_many(self, keys: Iterable[GateKey], *, cost: int = 1) -> list[Decision]:
        """`check_many`, awaitable."""
        return await self._acheck_many(self._series(keys, cost), (cost,))

    def require(self, key: GateKey = "default", *, cost: int = 1) -> Decision:
        """`check`, or RateLimitedError (QuotaExhaustedError where a quota is what denies)."""
        return self._admitted(key, self.check(key, cost=cost), cost)

    async def arequire(self, key: GateKey = "default", *, cost: int = 1) -> Decision:
        """`require`, awaitable."""
        return self._admitted(key, await self.acheck(key, cost=cost), cost)

    # when?

    def schedule(
        self, key: GateKey = "default", *, cost: int = 1, max_wait: Duration | None = None
    ) -> Decision:
        """Take the earliest turn and sleep until it comes; QueueFullError if that is past `max_wait`.

        A spent quota raises QuotaExhaustedError unless an explicit `max_wait` covers the wait. The turn
        is taken at once, so who asks first leaves first. A sleeper that is interrupted gives it back.
        """
        place = self._admissible(key, cost)
        bound_us = max_wait_us(max_wait)
        decision: Decision = self._commit(place, cost, bound_us)
        self._in_time(key, decision, cost, bound_us)
        try:
            self._waiters.sleep(self._store.clock.now_us() + decision.delay_us)
        except BaseException:
            # Where the store is gone by now, it is not that of which the caller is to be told.
            with suppress(StoreUnavailableError):
                self._refund(place, cost, decision.receipt)
            raise
        return decision

    async def aschedule(
        self, key: GateKey = "default", *, cost: int = 1, max_wait: Duration | None = None
    ) -> Decision:
        """`schedule`, awaitable; a cancelled task gives its turn back."""
        place = self._admissible(key, cost)
        bound_us = max_wait_us(max_wait)
        decision: Decision = await self._acommit(place, cost, bound_us)
        self._in_time(key, decision, cost, bound_us)
        try:
            await self._waiters.asleep(self._store.clock.now_us() + decision.delay_us)
        except BaseException:
            with shielded(), suppress(StoreUnavailableError):
                await self._arefund(place, cost, decision.receipt)
            raise
        return decision

    # to look, and to settle

    def peek(self, key: GateKey = "default") -> Decision:
        """What a call of cost 1 would be told. Consumes nothing."""
        decision: Decision = self._peek(self._place(key))
        return decision

    async def apeek(self, key: GateKey = "default") -> Decision:
        """`peek`, awaitable."""
        decision: Decision = await self._apeek(self._place(key))
        return decision

    def forecast(self, key: GateKey = "default", *, cost: int = 1) -> Forecast:
        """When a call of `cost` would be admitted, and how many would be now. Consumes nothing."""
        forecast: Forecast = self._forecast(self._admissible(key, cost), cost)
        return forecast

    async def aforecast(self, key: GateKey = "default", *, cost: int = 1) -> Forecast:
        """`forecast`, awaitable."""
        forecast: Forecast = await self._aforecast(self._admissible(key, cost), cost)
        return forecast

    def refund(self, key: GateKey, decision: Decision, *, cost: int = 1) -> Decision:
        """Give back `cost` units of what `decision` charged; returns how the key stands.

        Never mints: what time has restored already is not restored twice.
        """
        place, receipt = self._admissible(key, cost), self._charge_of(decision)
        standing: Decision = self._refund(place, cost, receipt)
        return standing

    async def arefund(self, key: GateKey, decision: Decision, *, cost: int = 1) -> Decision:
        """`refund`, awaitable."""
        place, receipt = self._admissible(key, cost), self._charge_of(decision)
        standing: Decision = await self._arefund(place, cost, receipt)
        return standing

    def debit(self, key: GateKey, decision: Decision | None = None, *, cost: int = 1) -> Decision:
        """Charge a call that has happened, without asking; time repays the debt.

        With the `decision` of an earlier charge, a composite of alternatives charges the part that
        paid then.
        """
        place, cost = self._place(key), whole("cost", cost)
        receipt = None if decision is None else self._charge_of(decision)
        standing: Decision = self._debit(place, cost, receipt)
        return standing

    async def adebit(self, key: GateKey, decision: Decision | None = None, *, cost: int = 1) -> Decision:
        """`debit`, awaitable."""
        place, cost = self._place(key), whole("cost", cost)
        receipt = None if decision is None else self._charge_of(decision)
        standing: Decision = await self._adebit(place, cost, receipt)
        return standing

    def reset(self, key: GateKey = "default") -> None:
        """Make the key cold."""
        self._store.reset(self.name, self.strategy, self._place(key))

    async def areset(self, key: GateKey = "default") -> None:
        """`reset`, awaitable."""
        await self._store.areset(self.name, self.strategy, self._place(key))

    def close(self) -> None:
        """Wake whoever waits, with StoreUnavailableError; close the store if this gate made it."""
        self._waiters.close()
        if self._owns_store:
            self._store.close()

    async def aclose(self) -> None:
        """`close`, awaitable."""
        self._waiters.close()
        if self._owns_store:
            await self._store.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"Gate({self.strategy!r}, store={self._store!r}, name={self.name!r})"

    def _series(self, keys: Iterable[GateKey], cost: int) -> list[Key]:
        if isinstance(keys, str | Mapping) or not isinstance(keys, Iterable):
            raise ConfigError("keys", keys, "is not a series of keys", 'pass a list such as ["alice", "bob"]')
        return [self._admissible(key, cost) for key in keys]

    def _admissible(self, key: GateKey, cost: int) -> Key:
        place = self._place(key)
        check_cost(cost, self._max_cost, str(key), self.strategy.limit_name)
        return place

    def _place(self, key: GateKey) -> Key:
        if isinstance(key, str):
            return key
        strategy = self.strategy
        if not isinstance(key, Mapping):
            raise ConfigError("key", key, "is neither text nor a mapping", 'pass a str such as "default"')
        if not isinstance(strategy, Composite):
            raise ConfigError("key", key, "has parts, and the strategy has none", "pass one str")
        if set(key) != set(strategy.names) or not all(isinstance(part, str) for part in key.values()):
            names = ", ".join(f"{name}=…" for name in strategy.names)
            raise ConfigError("key", key, "does not give one text for each part", f"pass dict({names})")
        return tuple(key[name] for name in strategy.names)

    def _admitted(self, key: GateKey, decision: Decision, cost: int) -> Decision:
        if decision.allowed:
            return decision
        raise self._refusal(decision, cost)(decision, str(key))

    def _in_time(self, key: GateKey, decision: Decision, cost: int, bound_us: int | None) -> None:
        if decision.allowed:
            return
        refusal = self._refusal(decision, cost)
        if bound_us is None or refusal is QuotaExhaustedError:
            raise refusal(decision, str(key))
        raise QueueFullError(decision, str(key), decision.retry_after, bound_us / SECOND_US)

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
            raise ConfigError(
                "decision", decision, "charged nothing", "pass the decision that admitted the call"
            )
        receipt, strategy = decision.receipt, self.strategy
        parts = len(receipt) if isinstance(receipt, tuple) else 0
        if parts not in strategy.receipt_lengths:
            raise ConfigError("decision", decision, "is of another strategy", "pass a decision of this gate")
        return receipt


def open_store(store: Store | None, clock: Clock | None) -> Store:
    """The store to use: the given one, or a new MemoryStore on the given clock."""
    if store is None:
        return MemoryStore(clock)
    if not isinstance(store, Store):
        raise ConfigError("store", store, "is not a store", "pass a MemoryStore or another Store")
    if clock is not None:
        raise ConfigError(
            "clock", clock, "comes on top of a store, which has a clock", "give the store the clock"
        )
    return store


def checked_name(name: str | None, store: Store, what: str) -> str:
    """The name under which keys live: given, or a private one where nobody shares the store."""
    if name is None:
        if store.shared:
            raise ConfigError(
                "name",
                name,
                "is missing, and other processes share the store",
                f'name what is limited: name="my-{what}"',
            )
        return f"{what}-{next(_unnamed)}"
    if not isinstance(name, str) or not name:
        raise ConfigError("name", name, "is not a text", f'pass a str such as "my-{what}"')
    return name
