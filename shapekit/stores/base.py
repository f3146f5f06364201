"""The one primitive of a store: read-modify-write of the state of a key, atomically.

`store.bind(name, program, operation)` prepares one operation of one algorithm under one name, once,
and returns the call that is made often: `apply(key, *args) -> result`. A `key` is text, or for a
composite whose parts have keys of their own a tuple of texts, one for each part; all of them change
together or not at all.

To write a store, implement the abstract methods. What they promise:

- an operation sees the state that the last one left, and nobody in between;
- time comes from the store's clock, read once per call;
- a state is kept for at least its `ttl_us`, by the highest time the store has seen;
- a state written by a program with other numbers goes through `adopted` before it is used;
- `close` makes every later call raise StoreUnavailableError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

from shapekit.clock import Clock

__all__ = ["Store"]

Key: TypeAlias = str | tuple[str, ...]
Operation: TypeAlias = Literal[
    "check", "commit", "refund", "debit", "earliest", "peek", "forecast",
    "reserve", "confirm", "cancel", "settle", "hold", "resume", "look",
    "enter", "watch", "leave", "keep", "reserve_many", "cancel_many",
    "throttled", "succeeded", "stated",
]  # fmt: skip

READS = frozenset(("earliest", "peek", "forecast", "confirm", "look"))
"""Operations that return their result as it is and leave the state alone."""


class Program(Protocol):
    """What a store runs: operations `(state, now, …) -> (state, result, ttl_us, persist)`, and reads."""

    kind: ClassVar[str]
    """The name of the algorithm in stored state."""

    @property
    def civil(self) -> bool:
        """Whether the operations take `skew`, how far civil time is ahead, as their last argument."""
        ...

    def adopt(self, state: Any, writer: Any, now: int, skew: int = 0) -> Any:
        """A state that a program of the same kind, with other numbers, left."""
        ...


Apply: TypeAlias = Callable[..., Any]
"""A bound operation, `apply(key, *args)`: everything but the key and its arguments is settled."""

ApplyMany: TypeAlias = Callable[[Sequence[Key], tuple[Any, ...]], list[Any]]
"""The same for several keys at one instant, `apply_many(keys, args)`: an answer for each."""


class Store(ABC):
    """Where the states live. See the module's text for what a store promises."""

    shared: bool
    """Whether other processes see the same states; then everything on it needs a name."""

    instant: bool = False
    """Whether calls return without I/O, so that asynchronous callers need not await."""

    sharded: bool = False
    """Whether parts of the truth can be lost by themselves; then `shard` tells them apart."""

    awaited_only: bool = False
    """Whether there are no synchronous calls to be had."""

    clock_decides: bool = False
    """Whether decisions go by `clock`: then an instant of theirs can be slept until, without a detour."""

    clock: Clock
    """What callers sleep by; also what decides, unless the store has a better one."""

    @abstractmethod
    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        """The call that applies `operation` to a key of `name`."""

    @abstractmethod
    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        """The call that applies `operation` to each of several keys, at one instant."""

    @abstractmethod
    def abind(self, name: str, program: Program, operation: Operation) -> Callable[..., Awaitable[Any]]:
        """`bind`, awaitable."""

    @abstractmethod
    def abind_many(
        self, name: str, program: Program, operation: Operation
    ) -> Callable[[Sequence[Key], tuple[Any, ...]], Awaitable[list[Any]]]:
        """`bind_many`, awaitable."""

    def shard(self, name: str, program: Program, key: Key) -> Hashable:
        """On which part of the truth a key lies, as far as is known; None for the whole."""
        return None

    @abstractmethod
    def reset(self, name: str, program: Program, key: Key) -> None:
        """Make the key cold."""

    @abstractmethod
    async def areset(self, name: str, program: Program, key: Key) -> None:
        """`reset`, awaitable."""

    @abstractmethod
    def reset_all(self, prefix: str = "") -> int:
        """Make every key cold whose `name:key` begins with `prefix`; returns how many there were."""

    @abstractmethod
    def keys(self, prefix: str = "") -> Iterator[str]:
        """The live keys as `name:key`, to look at."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; later calls raise StoreUnavailableError."""

    async def aclose(self) -> None:
        """`close`, awaitable."""
        self.close()
