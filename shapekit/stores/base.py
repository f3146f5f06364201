"""The one primitive of a store: read-modify-write of the state of a key, atomically.

`store.bind(name, program, operation)` prepares one operation of one algorithm under one name, once, and
returns the function that is called often: `apply(key, *args) -> result`. A `key` is text; for a composite
whose parts have keys of their own it is a tuple of texts, one for each part, which change together or not at
all.

To write a store, implement the abstract methods. The awaitable ones have a default: if the store is
`instant`, they run in place, else on worker threads of the store. Every store promises:

- a call runs `operation.step(program)` on the state that the last call left, with none in between. The step
  returns `(state, answer, ttl_us, persist)`, or its answer alone if the operation `is_read`;
- time comes from the store's clock, read once per call;
- a state is kept for at least its `ttl_us`, by the highest time the store has seen;
- a state written by a program with other numbers goes through `adopted` before it is used;
- a value that is not a state raises DamagedStateError: only its key is affected, not the store;
- an awaited call that is cancelled gives back what it took;
- `close` makes every later call raise StoreUnavailableError, and calls `wake`.

Settings: the overrides that operators have set for a name on a store, as one process knows them. With every
decision the process sends the version that it knows. If another version is in force, the store answers with
its text, and the decision is made by that. So every process obeys an override from its next decision on,
without asking for it. Operators set overrides from a policy or the command line: `changed`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakMethod, WeakValueDictionary

from shapekit._runtime import process
from shapekit._runtime.drivers import Driver, ThreadCall, Twin, Workers
from shapekit.algorithms.base import Operation
from shapekit.algorithms.compose import Composite, adopted
from shapekit.algorithms.inflight import Concurrency
from shapekit.clock import Clock
from shapekit.errors import ConfigError, CostExceedsLimitError, StoreUnavailableError, whose

if TYPE_CHECKING:
    from shapekit.algorithms.overrides import Override, Overrides

__all__ = ["Operation", "Store"]

T = TypeVar("T")
Key: TypeAlias = str | tuple[str, ...]


class DamagedStateError(StoreUnavailableError):
    """The value at a key is not a state of its program. The store itself works; only this key is affected."""


class Program(Protocol):
    """What a store runs: operations `(state, now, …) -> (state, result, ttl_us, persist)`, and reads."""

    kind: ClassVar[str]
    """The name of the algorithm in stored state."""

    @property
    def civil(self) -> bool:
        """Whether the operations take `skew`, how far civil time is ahead, as their last argument."""
        ...

    def adopt(self, state: Any, writer: Any, now: int, skew: int = 0) -> Any:
        """Convert a state that was left by `writer`, a program of the same kind with other numbers."""
        ...


Apply: TypeAlias = Callable[..., Any]
"""A bound operation, `apply(key, *args)`: only the key and the arguments vary."""

ApplyMany: TypeAlias = Callable[[Sequence[Key], tuple[Any, ...]], list[Any]]
"""The same for several keys at one instant, `apply_many(keys, args)`: an answer for each."""

Listener: TypeAlias = "Callable[[str, Overrides, Overrides], object]"


class Waiting(Protocol):
    """Something that has to know when a store is closed, such as sleepers that wait for slots on it."""

    def store_closed(self) -> None:
        """The store is closed: wake all sleepers, which raise StoreUnavailableError."""


PERMITS = ".permits"
"""The suffix of the name of a policy's permits, which obey the settings of the policy."""
_MOST_PROGRAMS = 1_000
"""How many programs are kept for the overrides of one name."""
_WORKERS, _WAITING = "workers", "waiting"
"""The names of two companions of a store."""


class Stored(NamedTuple):
    """The overrides in the store for a name."""

    version: str = ""
    """A new text with each change; empty if there was never a change."""
    text: str = ""
    """The overrides, as `written` gives them."""


class _Known(NamedTuple):
    """What a process knows of the overrides: one immutable value, replaced as a whole."""

    stored: Stored
    overrides: Overrides
    """The overrides in force."""
    ends_us: int | None
    """When the first override ends by itself, in civil time."""
    choose: Callable[[str], Override | None]
    """Finds the override that applies to a key."""


_NOTHING_SET = _Known(Stored(), (), None, lambda _: None)


class Settings:
    """The overrides of one name, as this process knows them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known = _NOTHING_SET
        self._listeners: tuple[WeakMethod[Listener], ...] = ()
        self._programs: dict[tuple[Any, Override], Any] = {}

    def hear(self, stored: Stored, wall_us: int) -> None:
        """Apply the overrides in the store, without those that have ended at this civil time."""
        before = self.known
        overrides = before.overrides if stored == before.stored else self._read(stored, before.overrides)
        in_force = tuple([one for one in overrides if not one.is_over(wall_us)])
        if in_force == before.overrides:
            if stored != before.stored:
                self.known = before._replace(stored=stored)
            return
        from shapekit.algorithms.overrides import chooser  # noqa: PLC0415 - only where something is set

        if not stored.version:
            warn(
                "what operators have set for %r is gone from the store, and the limits in the code apply: was"
                " it emptied, or does its server evict keys?",
                self.name,
            )
        ends = [one.ends_us for one in in_force if one.ends_us is not None]
        self.known = _Known(stored, in_force, min(ends, default=None), chooser(in_force))
        self._programs = {}
        for known in self._listeners:
            if (listener := known()) is not None:
                listener(self.name, before.overrides, in_force)

    def listen(self, listener: Listener) -> None:
        """Call this method on each change, with the name and the overrides before and after it.

        The caller may hold a lock, so the method must not do more than note the change.
        """
        living = [known for known in self._listeners if known() is not None]
        self._listeners = (*living, WeakMethod(listener))

    def is_over(self, clock: Clock) -> bool:
        """Whether one of the known overrides has ended."""
        return self.known.ends_us is not None and clock.wall_us() >= self.known.ends_us

    def program(self, program: Any, key: Any) -> Any:
        """The program that decides about a key: the given one, or one with the limits of an override."""
        if not self.known.overrides or key.__class__ is tuple:
            return program
        override = self.known.choose(key)
        if override is None:
            return program
        # By identity: hashing a program takes longer than everything else here.
        place = id(program), override
        found = self._programs.get(place)
        if found is None or found[0] is not program:
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs.clear()
            found = self._programs[place] = program, self._effective(program, override)
        return found[1]

    def _effective(self, program: Any, override: Override) -> Any:
        from shapekit.algorithms.overrides import effective  # noqa: PLC0415 - only where something is set

        try:
            return effective(program, override)
        except ConfigError as error:
            warn("an override of %r is ignored, and the limit in the code applies: %s", self.name, error)
            return program

    def _read(self, stored: Stored, known: Overrides) -> Overrides:
        from shapekit.algorithms.overrides import read  # noqa: PLC0415 - only where something is set

        try:
            return read(stored.text, known)
        except ConfigError as error:
            warn("the overrides of %r are ignored, and the limits in the code apply: %s", self.name, error)
            return ()


def warn(message: str, *args: object) -> None:
    """Log a warning on the background thread: the caller may hold a store's lock, and a log handler may use
    that store.
    """
    with suppress(RuntimeError):  # no thread can be started: the warning is logged once one can
        process.background_ready()
    process.in_background(_warned, message, args)


def _warned(message: str, args: tuple[object, ...]) -> None:
    import logging  # noqa: PLC0415 - loaded only to log

    logging.getLogger("shapekit.store").warning(message, *args)


def settings_name(name: str, program: Any) -> str:
    """The name whose settings a program obeys."""
    return name.removesuffix(PERMITS) if isinstance(program, Concurrency) else name


class Store(ABC):
    """Keeps the states of limits: the base class of all stores.

    `help(shapekit.stores.base)` describes what your own store has to promise, and
    `shapekit.testing.StoreConformance` tests it.
    """

    shared: bool
    """Whether other processes see the same states; then every limit on the store needs a name."""

    instant: bool = False
    """Whether calls return without I/O, so that asynchronous callers need not await."""

    sharded: bool = False
    """Whether parts of the store can be lost separately; then `shard` tells them apart."""

    awaited_only: bool = False
    """Whether the store has only asynchronous calls."""

    clock_decides: bool = False
    """Whether decisions are made by `clock`: then callers can sleep until an instant of the store."""

    clock: Clock
    """The clock that callers sleep by. It also makes decisions, unless the store has a better one."""

    @property
    def server(self) -> object:
        """The server behind this store; equal for stores that fail together."""
        return self

    @abstractmethod
    def bind(self, name: str, program: Program, operation: Operation) -> Apply:
        """Return the function that applies `operation` to a key of `name`."""

    @abstractmethod
    def bind_many(self, name: str, program: Program, operation: Operation) -> ApplyMany:
        """Return the function that applies `operation` to several keys, at one instant."""

    def abind(self, name: str, program: Program, operation: Operation) -> Callable[..., Awaitable[Any]]:
        """`bind`, awaitable."""

        def give_back(key: Key, *args_and_answer: Any) -> None:
            *args, answer = args_and_answer
            self._give_back(name, program, operation, [key], tuple(args), [answer])

        return self._awaitable(self.bind(name, program, operation), give_back)

    def abind_many(
        self, name: str, program: Program, operation: Operation
    ) -> Callable[[Sequence[Key], tuple[Any, ...]], Awaitable[list[Any]]]:
        """`bind_many`, awaitable."""
        return self._awaitable(
            self.bind_many(name, program, operation), partial(self._give_back, name, program, operation)
        )

    def twin(self, name: str, program: Program, operation: Operation) -> Twin[Any]:
        """`bind` and `abind` together, for code that is written once for threads and event loops."""
        return Twin(self.bind(name, program, operation), self.abind(name, program, operation))

    def shard(self, name: str, program: Program, key: Key) -> Hashable:
        """The part of the store that holds a key, if that is known; None for the whole store."""
        return None

    def settings(self, name: str) -> Settings:
        """What operators have set for a name, as this process knows it."""
        return companion(self, f"settings of {name}", partial(Settings, name))

    def wall_us(self) -> int:
        """The civil time, which decides when overrides end."""
        return self.clock.wall_us()

    def read_overrides(self, name: str) -> Stored:
        """Read the overrides of a name from the store, and apply them in this process."""
        return Stored()

    def all_overrides(self) -> dict[str, Stored]:
        """Read the overrides of every name that ever had one."""
        return {}

    def write_overrides(self, name: str, text: str, known: Stored) -> bool:
        """Replace the overrides of a name, in one step; False if they are no longer the `known` ones."""
        fix = "use a MemoryStore, SQLiteStore or RedisStore"
        raise ConfigError("store", type(self).__name__, "keeps no overrides", fix)

    async def aread_overrides(self, name: str) -> Stored:
        """`read_overrides`, awaitable."""
        return await self._awaitable(self.read_overrides)(name)

    async def awrite_overrides(self, name: str, text: str, known: Stored) -> bool:
        """`write_overrides`, awaitable."""
        return await self._awaitable(self.write_overrides)(name, text, known)

    @abstractmethod
    def reset(self, name: str, program: Program, key: Key) -> None:
        """Forget the key, as if it had never been used."""

    async def areset(self, name: str, program: Program, key: Key) -> None:
        """`reset`, awaitable."""
        await self._awaitable(self.reset)(name, program, key)

    @abstractmethod
    def reset_all(self, prefix: str = "") -> int:
        """Reset every key whose `name:key` begins with `prefix`; returns how many there were."""

    @abstractmethod
    def keys(self, prefix: str = "") -> Iterator[str]:
        """The live keys, as `name:key`."""

    @abstractmethod
    def close(self) -> None:
        """Release everything, and `wake` all waiting calls; later calls raise StoreUnavailableError."""

    async def aclose(self) -> None:
        """`close`, awaitable."""
        self.close()

    def _awaitable(
        self, call: Callable[..., T], give_back: Callable[..., object] = lambda *_: None
    ) -> Callable[..., Awaitable[T]]:
        """Make a call of this store awaitable: in place if the store is `instant`, else on a worker thread.

        If the task is cancelled meanwhile, `give_back` gets the arguments and the answer.
        """
        if self.instant:

            async def at_once(*args: Any) -> T:
                return call(*args)

            return at_once
        workers = companion(self, _WORKERS, Workers)
        return lambda *args: ThreadCall(partial(call, *args), partial(give_back, *args)).run(workers)

    def _give_back(
        self,
        name: str,
        program: Program,
        operation: Operation,
        keys: Sequence[Key],
        args: tuple[Any, ...],
        answers: Sequence[Any],
    ) -> None:
        """Give back what an operation took for a task that was cancelled before the answers."""
        for key, answer in zip(keys, answers, strict=True):
            for undo, undo_args in operation.undone(args, answer):
                self.bind(name, program, undo)(key, *undo_args)

    def wakes(self, waiting: Waiting) -> None:
        """Register sleepers to wake when the store is closed; they are held weakly."""
        known: WeakValueDictionary[int, Waiting] = companion(self, _WAITING, WeakValueDictionary)
        known[id(waiting)] = waiting

    def wake(self) -> None:
        """Wake all waiting calls, and end the worker threads: for `close`, once new calls are refused."""
        companion(self, _WORKERS, Workers).close()
        known: WeakValueDictionary[int, Waiting] = companion(self, _WAITING, WeakValueDictionary)
        for waiting in known.valuerefs():
            if (one := waiting()) is not None:
                one.store_closed()


def companion(store: Store, name: str, make: Callable[[], T]) -> T:
    """An object that belongs to a store and lives as long as it does.

    It is made when it is first asked for, because a subclass need not call the `__init__` of Store. If two
    threads ask first, one of the objects that they make is kept.
    """
    companions: dict[str, T] = vars(store).setdefault("_companions", {})
    known = companions.get(name)
    return companions.setdefault(name, make()) if known is None else known


def of_two_kinds(name: str, kind: str, program: Program) -> ConfigError:
    """The error for a name that is used for two kinds of program."""
    return ConfigError(
        "name",
        name,
        f"already holds a {kind}, and this is a {program.kind}",
        "use another name, or reset its keys",
    )


def beyond(
    operation: Operation, args: tuple[Any, ...], program: Any, key: object, name: str
) -> CostExceedsLimitError | None:
    """The error for a call that the limits in force can never admit; None if they can."""
    cost = operation.cost(args)
    if not cost or cost <= program.max_cost:
        return None
    return CostExceedsLimitError(cost, program.max_cost, str(key), "limit", name)


async def check_in_force(
    driver: Driver, store: Store, name: str, program: Any, key: Key, error: CostExceedsLimitError
) -> None:
    """Raise the error of a cost that the limit in the code never admits, unless an operator's limit does."""
    settings = store.settings(name)
    if error.cost <= settings.program(program, key).max_cost:
        return
    # Another process may have set a limit since then.
    with suppress(StoreUnavailableError):
        await driver.ask(Twin(store.read_overrides, store.aread_overrides), name)
    most = settings.program(program, key).max_cost
    if error.cost > most:
        raise CostExceedsLimitError(error.cost, most, *error.args[2:]) from None


def continued(name: str, key: Key, reader: Program, state: Any, writer: Any, now: int, skew: int) -> Any:
    """A state that `writer` left, as a state of `reader`; a ConfigError about it names the key."""
    try:
        return adopted(reader, state, writer, now, skew)
    except ConfigError as error:
        field, value, bound, fix = error.args
        raise ConfigError(field, value, f"{bound} ({whose(str(key), name)})", fix) from None


def part_keys(program: Program, keys: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """`(part, key)` for each part of a composite whose parts have keys of their own."""
    return tuple(zip(program.names if isinstance(program, Composite) else (), keys, strict=True))


def check_prefix(prefix: object) -> None:
    """Raise ConfigError if a prefix of keys is not text."""
    if not isinstance(prefix, str):
        raise ConfigError("prefix", prefix, "is not text", 'pass a str such as "api:"')


# how operators set limits


async def changed(
    driver: Driver, store: Store, name: str, change: Callable[[Overrides], Overrides]
) -> tuple[Overrides, Overrides]:
    """Change the overrides of a name in one step; returns the overrides before and after."""
    from shapekit.algorithms.overrides import written  # noqa: PLC0415 - only for changes

    look = Twin(store.read_overrides, store.aread_overrides)
    write = Twin(store.write_overrides, store.awrite_overrides)
    while True:
        await driver.ask(look, name)
        stored, before, *_ = store.settings(name).known
        after = change(before)
        if written(after) == stored.text or await driver.ask(write, name, written(after), stored):
            return before, after


def legible(stored: Stored, wall_us: int) -> Overrides:
    """The overrides in a store that have not ended; none if the text is malformed, as for decisions."""
    from shapekit.algorithms.overrides import read  # noqa: PLC0415 - only where something is set

    try:
        found = read(stored.text)
    except ConfigError:
        return ()
    return tuple([one for one in found if not one.is_over(wall_us)])


def set_by() -> str:
    """The user and the host of this process."""
    import getpass  # noqa: PLC0415 - only for changes
    import socket  # noqa: PLC0415 - likewise

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
