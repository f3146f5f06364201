"""ResilientStore: what happens when the store is gone.

Guard: one part of a store's truth that can be lost by itself, and what is answered while it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Literal, TypeAlias

from shapekit._runtime.cancellation import within
from shapekit.algorithms.base import share_of
from shapekit.algorithms.operation import Operation, Side
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import SECOND_US, Duration, duration_us, one_of
from shapekit.stores.base import Apply, ApplyMany, Key, Program, Store
from shapekit.stores.resilient.breaker import Attempt, Breaker
from shapekit.stores.resilient.fallback import Closed, Local, Open, Outage, Raise
from shapekit.stores.resilient.timeout import Deadline

__all__ = ["ResilientStore"]

MODES = {mode.mode: mode for mode in (Raise, Open, Closed)}


class Guard:
    """Asks the primary while it is there, and answers in the outage's mode while it is not."""

    def __init__(
        self, primary: Store, deadline: Deadline, timeout_us: int, on_outage: str, part: Fraction | None
    ) -> None:
        self.primary = primary
        self.instant = primary.instant
        self.breaker = Breaker(primary.clock, lambda: repr(primary), timeout_us)
        self._timeout_s = timeout_us / SECOND_US
        self._deadline = deadline
        self.outage: Outage = (
            MODES[on_outage](primary.clock, self.breaker)
            if part is None
            else Local(primary.clock, self.breaker, part)
        )
        self._closed = False
        self.asked_last: tuple[str, Program, Key] | None = None
        """The last key that lay here, of which program under which name."""

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        asked = self._asked(name, program, operation)
        if operation.on_both_sides and self.outage.local is not None:
            return _on_both_sides(self.outage.bind(name, program, operation), asked)
        if not operation.follows:
            return asked
        own = self.outage.own(name, program, operation)
        standing = (
            None if operation.instead is None else self._asked(name, program, operation.instead, operation)
        )
        unmoved = self.outage.bind(name, program, operation)

        def apply(key: Key, *args: Any) -> Any:
            side, args = operation.routed(args)
            if side is Side.PRIMARY:
                return asked(key, *args)
            if side is Side.LOCAL and own is not None:
                return own(key, *args)
            return unmoved(key, *args) if standing is None else standing(key)

        return apply

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        if operation.follows:
            apply = self.bind(name, program, operation)
            return lambda keys, args: [apply(key, *args) for key in keys]
        ask = self._prepared(self.primary.bind_many, name, program, operation)
        return self.guarded(ask, self.outage.bind_many(name, program, operation), self.breaker.attempt)

    def abind(self, name: str, program: Program, operation: Operation) -> Callable[..., Awaitable[Any]]:
        asked = self._aasked(name, program, operation)
        if operation.on_both_sides and self.outage.local is not None:
            return _on_both_sides(self.outage.bind(name, program, operation), asked)
        if not operation.follows:
            return asked
        own = self.outage.own(name, program, operation)
        standing = (
            None if operation.instead is None else self._aasked(name, program, operation.instead, operation)
        )
        unmoved = self.outage.bind(name, program, operation)

        async def aapply(key: Key, *args: Any) -> Any:
            side, args = operation.routed(args)
            if side is Side.PRIMARY:
                return await asked(key, *args)
            if side is Side.LOCAL and own is not None:
                return own(key, *args)
            return unmoved(key, *args) if standing is None else await standing(key)

        return aapply

    def abind_many(
        self, name: str, program: Program, operation: Operation
    ) -> Callable[[Sequence[Key], tuple[Any, ...]], Awaitable[list[Any]]]:
        if not operation.follows:
            ask = self._prepared(self.primary.abind_many, name, program, operation)
            return self.aguarded(ask, self.outage.bind_many(name, program, operation), self.breaker.attempt)
        aapply = self.abind(name, program, operation)

        async def aapply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            return [await aapply(key, *args) for key in keys]

        return aapply_many

    def _asked(
        self, name: str, program: Program, operation: Operation, lost: Operation | None = None
    ) -> Apply:
        ask = self._prepared(self.primary.bind, name, program, operation)
        return self.guarded(
            ask, self.outage.bind(name, program, lost or operation), self._attempts(operation)
        )

    def _aasked(
        self, name: str, program: Program, operation: Operation, lost: Operation | None = None
    ) -> Callable[..., Awaitable[Any]]:
        ask = self._prepared(self.primary.abind, name, program, operation)
        return self.aguarded(
            ask, self.outage.bind(name, program, lost or operation), self._attempts(operation)
        )

    def _attempts(self, operation: Operation) -> Callable[[], Attempt]:
        # Waiters who are about to leave must not be late because they probe.
        return self.breaker.attempt if operation.probes else partial(self.breaker.attempt, probes=False)

    def guarded(
        self,
        ask: Callable[..., Any],
        outage: Apply,
        attempt: Callable[[], Attempt],
        within: Apply | None = None,
    ) -> Apply:
        call = within or (at_leisure if self.instant else self._deadline.call)

        def apply(*args: Any) -> Any:
            self._check_open()
            with attempt() as may_ask:
                if may_ask:
                    return call(ask, *args)
            return outage(*args)

        return apply

    def aguarded(
        self, ask: Callable[..., Awaitable[Any]], outage: Apply, attempt: Callable[[], Attempt]
    ) -> Callable[..., Awaitable[Any]]:
        call = at_leisure if self.instant else self._in_time

        async def aapply(*args: Any) -> Any:
            self._check_open()
            with attempt() as may_ask:
                if may_ask:
                    return await call(ask, *args)
            return outage(*args)

        return aapply

    async def _in_time(self, ask: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        with within(self._timeout_s):
            return await ask(*args)
        raise self._deadline.missed()

    def _prepared(self, bind: Callable[..., Callable[..., Any]], *what: Any) -> Callable[..., Any]:
        """The primary's own call, bound now, or at its first use if the primary is gone now."""
        bound: Callable[..., Any] | None = None

        def ask(*args: Any) -> Any:
            nonlocal bound
            if bound is None:
                bound = bind(*what)
            return bound(*args)

        if not self.breaker.is_open:
            with self.breaker.attempt():
                bound = bind(*what)
        return ask

    def refuse(self, *_: Any) -> Any:
        raise self.breaker.refusal()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("this ResilientStore is closed; make a new one")

    def close(self) -> None:
        """Answer nobody any more."""
        self._closed = True
        if self.outage.local is not None:
            self.outage.local.close()


def _on_both_sides(here: Apply, asked: Callable[..., Any]) -> Callable[..., Any]:
    """A permit does not say where it was taken; where it was not, giving it back does nothing."""

    def apply(*args: Any) -> Any:
        here(*args)
        return asked(*args)

    return apply


def at_leisure(call: Callable[..., Any], *args: Any) -> Any:
    """Make a call that nothing bounds but itself."""
    return call(*args)


OnOutage: TypeAlias = Literal["raise", "open", "closed", "local"]


class ResilientStore(Store):
    """Goes on when `primary` is gone, in the way that `on_outage` says.

        >>> from shapekit import MemoryStore, Shaper
        >>> store = ResilientStore(MemoryStore(), on_outage="local", share=1 / 4)
        >>> Shaper("10/s", name="stripe", store=store).reserve().delay
        0.0

    An outage is a StoreUnavailableError, or no answer within `timeout`. From then on nobody touches the
    primary until a probe succeeds: a call that comes by after a back-off of at most 10 seconds, and that
    may take `timeout` itself; waiters who are about to leave are no probes. The
    logger `shapekit.store` says once that the store is lost, and once that it is back.

    What each mode admits, for a limit of `burst` and `rate` (for a window or a quota: its limit, and
    that by its period; one limit more where periods begin by the calendar or the epoch), in an outage
    of D seconds as a worker sees it, from its first call that fails to its first that is answered:

    - `"raise"`: nothing. StoreUnavailableError, and the caller decides.
    - `"closed"`: nothing. Gates deny and shapers refuse, with the time to the next probe as `retry_after`.
      Under-admits by up to `rate * D`, as `"raise"` does.
    - `"open"`: everything, without a delay. Over-admits by whatever arrives in D; holds are not kept.
    - `"local"`: each worker limits by itself, at `share` of the limits, in its own memory. W workers
      admit at most `W * (max(1, floor(share * burst)) + share * rate * D)`: with `share = 1/W`, the rate
      and one burst more. Under-admits where the work is uneven: a worker alone gets its share. A cost
      above the share's burst is refused until the next probe. Holds placed before are not known.

    And in every mode:

    - The primary does not hear of what was admitted meanwhile: when it is back it may admit its burst
      once more. It forgets nothing itself: what it had admitted still counts.
    - A slot that was promised is kept: waiters leave when they were told to, and so those who wait at a
      switch, from one side or the other, come on top of what the other side admits.
    - Where the primary has shards, as a Redis Cluster has, each is lost and found by itself: an outage of
      one is none of the others. One whose keys another has taken over is lost no more.
    - A call whose answer is lost may cost a slot that nobody uses; it is never charged twice there.
    - What a call was charged is given back where it was charged, or not at all: `cancel`, `settle` and
      `refund` never raise for an outage, they give back nothing.
    - Calls in flight (`concurrency=`) go on. New ones: `"raise"` raises, `"closed"` refuses, `"open"` lets
      all go uncounted, `"local"` gives each worker `max(1, floor(share * limit))` permits of its own. The
      primary hears of what has ended within a third of a lease after it is back, and never of what began
      elsewhere: so those in flight at a switch come on top of its limit, until they end.

    A synchronous call runs on a thread of the store's own, so that a hanging one can be given up; that
    thread ends when the primary's own timeouts let it. A store that is `instant` is asked directly.
    """

    def __init__(
        self,
        primary: Store,
        *,
        on_outage: OnOutage = "raise",
        share: float | Fraction | None = None,
        timeout: Duration = 0.5,
    ) -> None:
        if not isinstance(primary, Store):
            raise ConfigError("primary", primary, "is not a store", "pass one, such as a RedisStore")
        one_of("on_outage", on_outage, (*MODES, Local.mode))
        part = _checked_share(on_outage, share)
        timeout_us = duration_us("timeout", timeout)
        self.primary = primary
        """The store that is asked as long as it answers."""
        self.on_outage = on_outage
        """What happens while it does not: "raise", "open", "closed" or "local"."""
        self.clock = primary.clock
        self.shared = primary.shared
        self.instant = primary.instant
        self.clock_decides = primary.clock_decides
        self.awaited_only = primary.awaited_only
        self._sharded = primary.sharded
        self._timeout_us = timeout_us
        self._part = part
        self._deadline = Deadline(timeout_us)
        self._whole = self._new_guard()
        self._guards: dict[Hashable, Guard] = {}
        self._closed = False

    @property
    def is_lost(self) -> bool:
        """Whether the primary, or a shard of it, is known to be gone, and not asked but by probes."""
        self._forgive_the_replaced()
        return any(guard.breaker.is_open for guard in self._all())

    # binding

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        if not self._sharded:
            return self._whole.bind(name, program, operation)
        # What is to be prepared is prepared now, whichever shard is asked first.
        bound = {self._whole: self._whole.bind(name, program, operation)}

        def apply(key: Key, *args: Any) -> Any:
            guard = self._guard(name, program, key)
            if guard not in bound:
                bound[guard] = guard.bind(name, program, operation)
            return bound[guard](key, *args)

        return apply

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        if not self._sharded:
            return self._whole.bind_many(name, program, operation)
        apply = self.bind(name, program, operation)
        return lambda keys, args: [apply(key, *args) for key in keys]

    def abind(self, name: str, program: Program, operation: Operation) -> Callable[..., Awaitable[Any]]:
        if not self._sharded:
            return self._whole.abind(name, program, operation)
        bound = {self._whole: self._whole.abind(name, program, operation)}

        def aapply(key: Key, *args: Any) -> Awaitable[Any]:
            guard = self._guard(name, program, key)
            if guard not in bound:
                bound[guard] = guard.abind(name, program, operation)
            return bound[guard](key, *args)

        return aapply

    def abind_many(
        self, name: str, program: Program, operation: Operation
    ) -> Callable[[Sequence[Key], tuple[Any, ...]], Awaitable[list[Any]]]:
        if not self._sharded:
            return self._whole.abind_many(name, program, operation)
        aapply = self.abind(name, program, operation)

        async def aapply_many(keys: Sequence[Key], args: tuple[Any, ...]) -> list[Any]:
            return [await aapply(key, *args) for key in keys]

        return aapply_many

    # beside the operations

    def reset(self, name: str, program: Program, key: Key) -> None:
        guard = self._guard(name, program, key)
        guard.guarded(self.primary.reset, guard.refuse, guard.breaker.attempt)(name, program, key)
        if guard.outage.local is not None:
            guard.outage.local.reset(name, program, key)

    async def areset(self, name: str, program: Program, key: Key) -> None:
        guard = self._guard(name, program, key)
        await guard.aguarded(self.primary.areset, guard.refuse, guard.breaker.attempt)(name, program, key)
        if guard.outage.local is not None:
            guard.outage.local.reset(name, program, key)

    def reset_all(self, prefix: str = "") -> int:
        whole = self._whole
        count: int = whole.guarded(self.primary.reset_all, whole.refuse, whole.breaker.attempt, at_leisure)(
            prefix
        )
        for guard in self._all():
            if guard.outage.local is not None:
                guard.outage.local.reset_all(prefix)
        return count

    def keys(self, prefix: str = "") -> Iterator[str]:
        whole = self._whole
        found: Iterator[str] = whole.guarded(
            self.primary.keys, whole.refuse, whole.breaker.attempt, at_leisure
        )(prefix)
        return found

    def close(self) -> None:
        if self._let_go():
            self.primary.close()

    async def aclose(self) -> None:
        if self._let_go():
            await self.primary.aclose()

    def __repr__(self) -> str:
        return f"ResilientStore({self.primary!r}, on_outage={self.on_outage!r})"

    # inside

    def _guard(self, name: str, program: Program, key: Key) -> Guard:
        """That of the shard where the key lies."""
        shard = self.primary.shard(name, program, key) if self._sharded else None
        if shard is None:
            return self._whole
        self._forgive_the_replaced()
        # Two threads that meet a shard for the first time agree on one guard.
        guard = self._guards.get(shard) or self._guards.setdefault(shard, self._new_guard())
        guard.asked_last = (name, program, key)
        return guard

    def _forgive_the_replaced(self) -> None:
        """A lost shard whose keys are another's by now is asked no more, so no probe would find it again."""
        for shard, guard in list(self._guards.items()):
            if guard.breaker.is_open and guard.asked_last is not None:
                owner = self.primary.shard(*guard.asked_last)
                if owner is not None and owner != shard:
                    guard.breaker.replaced()

    def _new_guard(self) -> Guard:
        return Guard(self.primary, self._deadline, self._timeout_us, self.on_outage, self._part)

    def _all(self) -> list[Guard]:
        return [self._whole, *list(self._guards.values())]

    def _let_go(self) -> bool:
        """Let go of what is ours; whether the primary is still to be closed."""
        if self._closed:
            return False
        self._closed = True
        self._deadline.close()
        for guard in self._all():
            guard.close()
        self.wake()
        return True


def _checked_share(on_outage: str, share: Any) -> Fraction | None:
    if on_outage == Local.mode:
        if share is None:
            raise ConfigError(
                "share", share, 'is missing, and on_outage="local" needs it', "pass 1 / number of workers"
            )
        return share_of(share)
    if share is not None:
        raise ConfigError("share", share, f"means nothing with on_outage={on_outage!r}", "leave it away")
    return None
