"""Events: listeners are called with what happens to calls, keys and stores.

    >>> from shapekit import Shaper
    >>> shaper = Shaper("10/s", name="stripe")
    >>> with shaper.listen(print):
    ...     reservation = shaper.reserve("alice")
    Reserved(policy='stripe', key='alice', cost=1, delay=0.0)

A listener is called synchronously, in the thread or task of the call. If it raises, the call goes on, and
the listener's first exception is logged. While there are no listeners, no events are made.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Self, TypeAlias, dataclass_transform
from weakref import ref

from shapekit._runtime import process
from shapekit._runtime.process import SWITCH, from_signal
from shapekit.errors import ConfigError
from shapekit.rate import Value

__all__ = [
    "BudgetReached",
    "Cancelled",
    "Departed",
    "Event",
    "Exhausted",
    "Held",
    "LimitChanged",
    "Listener",
    "Listening",
    "Measured",
    "RateChanged",
    "Refused",
    "Reserved",
    "Resumed",
    "Settled",
    "StoreBack",
    "StoreFailed",
    "StoreLost",
    "listen",
]


@dataclass_transform(frozen_default=True)
class _Event(Value):
    """Base class; a subclass annotates its fields."""

    def __init_subclass__(cls) -> None:
        cls.fields = tuple(cls.__annotations__)
        cls.__match_args__ = cls.fields  # type: ignore[attr-defined, misc]

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self.fields
        if named:
            values += tuple(named.pop(name) for name in fields[len(values) :] if name in named)
        if named or len(values) != len(fields):
            raise TypeError(f"{type(self).__name__} takes {', '.join(fields)}: each of them once")
        self.__dict__.update(zip(fields, values))  # noqa: B905 - their number is known, and strict is slow

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._values()


class Reserved(_Event):
    """A call took a slot. If it waits in this process, Departed, Cancelled or Refused follows."""

    policy: str
    key: str
    cost: int
    delay: float
    """Seconds from now until the slot comes."""


class Departed(_Event):
    """A call left."""

    policy: str
    key: str
    cost: int
    delay: float
    """Seconds that the call was delayed, including holds placed meanwhile, and `late`."""
    late: float
    """Seconds that the call left after its slot."""


class Refused(_Event):
    """A call was refused: at once, or while it waited, because a hold made the wait too long."""

    policy: str
    key: str
    cost: int
    code: str
    """`queue_full`, `quota_exhausted` or `account_exhausted`, the `code` of the error."""
    delay: float
    """Seconds that the call would have waited."""
    waited: bool
    """Whether the call had a slot and gave it back."""


class Cancelled(_Event):
    """A slot was given back, or its call gave up too late to give it back."""

    policy: str
    key: str
    cost: int
    returned: bool
    """Whether another call can take the slot."""


class Measured(_Event):
    """A call left at once because its policy has `enforce=False`; says what shaping would have done.

    It replaces all other events of the call.
    """

    policy: str
    key: str
    cost: int
    delay: float
    """Seconds that the call would have waited; infinite if its cost exceeds what can ever be admitted."""
    code: str | None
    """The `code` of the error that would have refused the call; None if no error would have."""


class Held(_Event):
    """A hold was placed: for a while, no call of the key leaves. Not emitted if a longer hold is in place."""

    policy: str
    key: str
    length: float
    """Seconds from now."""
    added: float
    """Seconds by which this lengthens the hold that the process knew of; `length` if it knew of none."""


class Exhausted(_Event):
    """A server says that the account behind a key has nothing left to spend, and the key is held.

    Emitted once for each hold, by every process that gets such an answer.
    """

    policy: str
    key: str
    length: float
    """Seconds from now until a call may try again."""


class Resumed(_Event):
    """A hold was ended early."""

    policy: str
    key: str
    left: float
    """Seconds that the key stays held, so that every waiting call notices the change."""


class RateChanged(_Event):
    """An adaptive rate was lowered or raised by the calls of this process."""

    policy: str
    key: str
    rate: float
    """Calls per second from now on."""
    before: float


class LimitChanged(_Event):
    """An operator has changed a limit, or such a change has ended.

    Each process emits it once, when it notices the change. Any call may be the one that notices, so the
    event is emitted on a separate thread.
    """

    policy: str
    key: str | None
    """The key; `gold-*` for all keys that begin with `gold-`; None for the whole policy."""
    limit: str
    """The limit that applies from now on, such as `rate 20/s`; empty if it is the one in the code."""
    before: str
    """The limit that applied before."""
    by: str
    """Who made the change; empty if a change has ended."""
    reason: str


class Settled(_Event):
    """A call turned out to cost something other than it was charged."""

    policy: str
    key: str
    cost: int
    """What the call was charged before."""
    actual: int
    """What the call cost."""


class BudgetReached(_Event):
    """The calls of a key have used 80 % or 95 % of a quota, or a share set in an `LLMBudget`.

    Emitted once per period and process. A call that takes a slot reads the usage, at most once a second per
    key; if several shares are reached at once, one event for each is emitted, in order.
    """

    policy: str
    key: str
    quota: str
    """The name of the quota, as in `QuotaUsage.name`."""
    share: float
    """The share of the limit that is used, such as 0.8."""
    used: int
    """Units charged in this period, including slots still to come."""
    limit: int


class StoreFailed(_Event):
    """A store did not answer a call, which raised StoreUnavailableError."""

    policy: str
    key: str
    error: str


class StoreLost(_Event):
    """A ResilientStore lost its primary store, or a shard of it, and applies its `on_outage` mode."""

    store: str
    cause: str


class StoreBack(_Event):
    """A ResilientStore reaches its primary store, or the shard, again."""

    store: str
    away: float
    """Seconds without it."""


Event: TypeAlias = (
    Reserved
    | Departed
    | Refused
    | Cancelled
    | Measured
    | Held
    | Exhausted
    | Resumed
    | RateChanged
    | LimitChanged
    | Settled
    | BudgetReached
    | StoreFailed
    | StoreLost
    | StoreBack
)
Listener: TypeAlias = Callable[[Event], object]


class Listeners:
    """The listeners of one shaper, or of the whole process. Listeners may come and go at any time."""

    __slots__ = ("__weakref__", "_lock", "each")

    def __init__(self) -> None:
        self._lock = process.lock()
        self.each: dict[Callable[[Event], None], None] = {}

    def add(self, listener: Listener) -> Listening:
        """Call the listener with each event from now on."""
        if not callable(listener):
            raise ConfigError("listener", listener, "cannot be called", "pass a function of one event")
        import inspect  # noqa: PLC0415 - only for listeners

        if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__):
            bound = "is a coroutine function, which would not be awaited"
            raise ConfigError("listener", listener, bound, "pass a plain one")
        hear = _hearing(listener)
        # The entry disappears with its shaper. The weakref callback is a C function and takes no lock.
        own = ref(self, SWITCH.loud.pop)
        with self._lock:
            self.each[hear] = None
            SWITCH.loud[own] = None
        return Listening(self, hear)

    def drop(self, hear: Callable[[Event], None]) -> None:
        """Remove a listener."""
        own = ref(self)
        with self._lock:
            self.each.pop(hear, None)
            if not self.each:
                SWITCH.loud.pop(own, None)

    def tell(self, event: Event) -> None:
        """Pass the event to the listeners here, then to those of the whole process, each in order of adding.

        A KeyboardInterrupt and its like from a listener, or an error from a signal handler, reaches the
        caller after all listeners were called.
        """
        raised: BaseException | None = None
        elsewhere = {} if self is EVERYWHERE else EVERYWHERE.each
        for hear in (*self.each, *elsewhere):
            try:
                hear(event)
            except BaseException as error:
                raised = error
        if raised is not None:
            raise raised

    def __bool__(self) -> bool:
        """Whether there are listeners for events from here."""
        if not SWITCH.loud or SWITCH.offs:
            return False
        return bool(self.each or EVERYWHERE.each)


def _hearing(listener: Listener) -> Callable[[Event], None]:
    """Wrap a listener: its first Exception is logged, and only those of signal handlers are raised."""
    failures = count()

    def hear(event: Event) -> None:
        try:
            listener(event)
        except Exception as error:
            if from_signal(error):
                raise
            # Threads may fail at the same time; only one of them gets the count 0.
            if next(failures) == 0:
                import logging  # noqa: PLC0415 - loaded only to log

                logging.getLogger("shapekit.events").exception(
                    "listener %r failed; it still gets events, and further failures are not logged",
                    listener,
                )

    return hear


class Listening:
    """A listener's registration, as `listen` returns it. `close()` or leaving the `with` block ends it."""

    __slots__ = ("_hear", "_listeners")

    def __init__(self, listeners: Listeners, hear: Callable[[Event], None]) -> None:
        # A weak reference, so that a kept registration does not keep the shaper alive.
        self._listeners = ref(listeners)
        self._hear = hear

    def close(self) -> None:
        """Stop listening. A thread that is just sending an event may still deliver it."""
        listeners = self._listeners()
        if listeners is not None:
            listeners.drop(self._hear)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()


EVERYWHERE = Listeners()


def listen(listener: Listener) -> Listening:
    """Call the listener with every event of this process from now on: of shapers, policies and stores."""
    return EVERYWHERE.add(listener)
