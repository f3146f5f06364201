"""FaultyStore: a store with faults that can be switched on, to test what a program does without its store.

>>> from shapekit import Gate, GCRA, MemoryStore, StoreUnavailableError
>>> store = FaultyStore(MemoryStore())
>>> gate = Gate(GCRA("10/s"), store=store)
>>> store.down = True
>>> try:
...     gate.check("alice")
... except StoreUnavailableError as error:
...     print(error)
this FaultyStore is down
>>> store.mend()
>>> bool(gate.check("alice")), store.calls
(True, 2)
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from shapekit._runtime.drivers import TASKS, Alarm, Driver, Twin, run
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import MAX_SPAN_US, SECOND_US, Duration, duration_us
from shapekit.stores.base import Apply, ApplyMany, Key, Operation, Program, Settings, Store, Stored

__all__ = ["FaultyStore"]

T = TypeVar("T")


class FaultyStore(Store):
    """A store that passes calls to `inner`, with faults: attributes that any thread may set at any time.

    - `down`: every call raises StoreUnavailableError and does nothing.
    - `loses_replies`: every call runs, and then raises StoreUnavailableError.
    - `slow`: every call first sleeps this many seconds, on the clock of `inner`; other faults come after it.

    `calls` counts all calls, including failed ones. `mend` ends all faults, and wakes slow calls. The store
    behaves like a remote one: its calls are awaited, even if `inner` answers at once. Binding an operation
    does not count as a call.
    """

    def __init__(self, inner: Store) -> None:
        if not isinstance(inner, Store):
            raise ConfigError("inner", inner, "is not a store", "pass one, such as a MemoryStore")
        self.inner = inner
        """The wrapped store."""
        self.clock = inner.clock
        self.shared = inner.shared
        self.clock_decides = inner.clock_decides
        self.awaited_only = inner.awaited_only
        self.down = False
        """Whether every call raises and does nothing."""
        self.loses_replies = False
        """Whether every call runs, and then raises."""
        self.calls = 0
        """How many calls were made."""
        self._slow_us = 0
        self._lock = threading.Lock()
        self._asleep: set[Alarm] = set()

    @property
    def slow(self) -> float:
        """How many seconds every call sleeps first; 0 by default."""
        return self._slow_us / SECOND_US

    @slow.setter
    def slow(self, length: Duration) -> None:
        self._slow_us = duration_us("slow", length, least=0, most=MAX_SPAN_US)

    @property
    def waiting(self) -> int:
        """How many slow calls are under way."""
        return len(self._asleep)

    def mend(self) -> None:
        """End all faults; slow calls that are under way go on at once."""
        self.down = self.loses_replies = False
        self.slow = 0
        self._wake()

    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        return self._faulty(self.inner.bind(name, program, operation))

    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        return self._faulty(self.inner.bind_many(name, program, operation))

    def abind(self, name: str, program: Program, operation: Operation) -> Callable[..., Awaitable[Any]]:
        return self._afaulty(self.inner.abind(name, program, operation))

    def abind_many(
        self, name: str, program: Program, operation: Operation
    ) -> Callable[[Sequence[Key], tuple[Any, ...]], Awaitable[list[Any]]]:
        return self._afaulty(self.inner.abind_many(name, program, operation))

    def settings(self, name: str) -> Settings:
        return self.inner.settings(name)

    def read_overrides(self, name: str) -> Stored:
        return self._faulty(self.inner.read_overrides)(name)

    async def aread_overrides(self, name: str) -> Stored:
        return await self._afaulty(self.inner.aread_overrides)(name)

    def all_overrides(self) -> dict[str, Stored]:
        return self._faulty(self.inner.all_overrides)()

    def write_overrides(self, name: str, text: str, known: Stored) -> bool:
        return self._faulty(self.inner.write_overrides)(name, text, known)

    async def awrite_overrides(self, name: str, text: str, known: Stored) -> bool:
        return await self._afaulty(self.inner.awrite_overrides)(name, text, known)

    def reset(self, name: str, program: Program, key: Key) -> None:
        self._faulty(self.inner.reset)(name, program, key)

    async def areset(self, name: str, program: Program, key: Key) -> None:
        await self._afaulty(self.inner.areset)(name, program, key)

    def reset_all(self, prefix: str = "") -> int:
        return self._faulty(self.inner.reset_all)(prefix)

    def keys(self, prefix: str = "") -> Iterator[str]:
        return self._faulty(self.inner.keys)(prefix)

    def close(self) -> None:
        """Close `inner`; slow calls that are under way go on at once."""
        run(self._close)

    async def aclose(self) -> None:
        """`close`, awaitable."""
        await self._close(TASKS)

    async def _close(self, driver: Driver) -> None:
        self._wake()
        await driver.ask(Twin(self.inner.close, self.inner.aclose))
        self.wake()

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r})"

    # the faults

    def _faulty(self, call: Callable[..., T]) -> Callable[..., T]:
        return lambda *args: run(self._answered, call, *args)

    def _afaulty(self, call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        return partial(self._answered, TASKS, call)

    async def _answered(self, driver: Driver, call: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            self.calls += 1
        if self._slow_us:
            alarm = driver.alarm()
            self._asleep.add(alarm)
            try:
                await driver.ask(Twin(self.clock.sleep, self.clock.asleep), self.slow, alarm)
            finally:
                self._asleep.discard(alarm)
        self._check_up()
        answer = await driver.ask(Twin(call, call), *args)
        if self.loses_replies:
            raise StoreUnavailableError("this FaultyStore lost the reply")
        return answer

    def _check_up(self) -> None:
        if self.down:
            raise StoreUnavailableError("this FaultyStore is down")

    def _wake(self) -> None:
        for alarm in list(self._asleep):
            alarm.set()
