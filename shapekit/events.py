"""Events: what happens to calls, keys and stores, told to whoever listens.

    >>> from shapekit import Shaper
    >>> shaper = Shaper("10/s", name="stripe")
    >>> with shaper.listen(print):
    ...     reservation = shaper.reserve("alice")
    Reserved(policy='stripe', key='alice', cost=1, delay=0.0)

A listener is called where it happens: in the thread or task of the caller, before that goes on. One that
raises is logged once, and never hurts a call. While nobody listens no event is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeAlias, dataclass_transform
from weakref import ref

from shapekit._runtime import forks
from shapekit._runtime.switch import SWITCH
from shapekit._runtime.value import Value
from shapekit.errors import ConfigError

__all__ = [
    "BudgetReached",
    "Cancelled",
    "Departed",
    "Event",
    "Held",
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
    """The base: what a subclass annotates are its fields."""

    def __init_subclass__(cls) -> None:
        cls.fields = tuple(cls.__annotations__)
        cls.__match_args__ = cls.fields  # type: ignore[attr-defined, misc]

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self.fields
        if named:
            values += tuple(named.pop(name) for name in fields[len(values) :] if name in named)
        if named or len(values) != len(fields):
            raise TypeError(f"{type(self).__name__} takes {', '.join(fields)}: each of them once")
        self.__dict__.update(zip(fields, values, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._values()


class Reserved(_Event):
    """A call took a slot. Where it waits for that here, it ends as Departed, Cancelled or Refused."""

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
    """Seconds for which it was delayed: with the holds that came between, and with `late`."""
    late: float
    """By how many seconds it left later than its slot had come."""


class Refused(_Event):
    """A call was refused: at once, or while it waited, because a hold made the wait too long."""

    policy: str
    key: str
    cost: int
    code: str
    """`queue_full` or `quota_exhausted`, as its error's `code`."""
    delay: float
    """Seconds that it would have had to wait."""
    waited: bool
    """Whether it had a slot, and gave that back."""


class Cancelled(_Event):
    """A slot was given back; or whoever waited for it gave up, and it was too late to give it back."""

    policy: str
    key: str
    cost: int
    returned: bool
    """Whether somebody else may have it."""


class Measured(_Event):
    """A call passed at once, because its policy has `enforce=False`; this is what it was spared.

    Instead of all other events of the call.
    """

    policy: str
    key: str
    cost: int
    delay: float
    """Seconds that it would have had to wait; infinite if it cost more than could ever be admitted."""
    code: str | None
    """The `code` of the error that it would have been refused with; None if it would have waited."""


class Held(_Event):
    """A hold was placed: nobody leaves on a key for a while. Where a longer one is in place, none is."""

    policy: str
    key: str
    length: float
    """Seconds from now."""
    added: float
    """By how many of them that is longer than what this process knew of: all of them, if of nothing."""


class Resumed(_Event):
    """A hold was ended ahead of its time."""

    policy: str
    key: str
    left: float
    """Seconds that the key is held still, so that all who wait hear of it."""


class RateChanged(_Event):
    """The rate of a key was lowered or raised, by what this process told of its calls."""

    policy: str
    key: str
    rate: float
    """Calls a second from now on."""
    before: float


class Settled(_Event):
    """A call turned out to cost something else than it was charged."""

    policy: str
    key: str
    cost: int
    """What it was charged before."""
    actual: int
    """What it cost."""


class BudgetReached(_Event):
    """The calls of a key have used 80 %, or 95 %, of a quota: told once in each period, by each process.

    Whoever takes a slot looks, at most once a second for each key. What was passed at one go is told in
    order.
    """

    policy: str
    key: str
    quota: str
    """Which one, as `QuotaUsage.name` has it."""
    share: float
    """The share of the limit that was reached: 0.8 or 0.95."""
    used: int
    """Units charged in this period, slots still to come included."""
    limit: int


class StoreFailed(_Event):
    """A store did not answer a call, which raised StoreUnavailableError."""

    policy: str
    key: str
    error: str


class StoreLost(_Event):
    """A ResilientStore lost its primary, or a shard of it, and does without."""

    store: str
    cause: str


class StoreBack(_Event):
    """It has found that again."""

    store: str
    away: float
    """Seconds for which it did without."""


Event: TypeAlias = (
    Reserved
    | Departed
    | Refused
    | Cancelled
    | Measured
    | Held
    | Resumed
    | RateChanged
    | Settled
    | BudgetReached
    | StoreFailed
    | StoreLost
    | StoreBack
)
Listener: TypeAlias = Callable[[Event], object]


class Ears:
    """Who listens in one place: to one shaper, or everywhere. Listeners may come and go meanwhile."""

    __slots__ = ("__weakref__", "_lock", "listeners")

    def __init__(self) -> None:
        self._lock = forks.lock()
        self.listeners: tuple[Callable[[Event], None], ...] = ()

    def add(self, listener: Listener) -> Listening:
        """Tell the listener from now on."""
        if not callable(listener):
            raise ConfigError("listener", listener, "cannot be called", "pass a function of one event")
        if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__):
            raise ConfigError(
                "listener", listener, "is a coroutine function, which nobody would await", "pass a plain one"
            )
        hear = _hearing(listener)
        with self._lock:
            # These go with the shaper that has them; what is called then is C alone, and takes no lock.
            SWITCH.loud[ref(self, SWITCH.loud.pop)] = None
            self.listeners = (*self.listeners, hear)
        return Listening(self, hear)

    def drop(self, hear: Callable[[Event], None]) -> None:
        """Do so no more."""
        with self._lock:
            self.listeners = tuple([one for one in self.listeners if one is not hear])
            if not self.listeners:
                SWITCH.loud.pop(ref(self), None)

    def tell(self, event: Event) -> None:
        """Tell those who listen here, then those who listen everywhere, each in the order of coming.

        What a listener raises that is no Exception goes on to the caller, once all have heard.
        """
        raised: BaseException | None = None
        elsewhere = () if self is EVERYWHERE else EVERYWHERE.listeners
        for hear in (*self.listeners, *elsewhere):
            try:
                hear(event)
            except BaseException as error:
                raised = error
        if raised is not None:
            raise raised

    def __bool__(self) -> bool:
        """Whether anybody hears what is told here."""
        if not SWITCH.loud or SWITCH.offs:
            return False
        return bool(self.listeners or EVERYWHERE.listeners)


def _hearing(listener: Listener) -> Callable[[Event], None]:
    """Tells the listener. Of what it raises, the first Exception is logged, and none is raised."""
    failures = count()

    def hear(event: Event) -> None:
        try:
            listener(event)
        except Exception:
            # Threads may fail together, and one of them counts first.
            if next(failures) == 0:
                import logging  # noqa: PLC0415 - only who has something to say loads it

                logging.getLogger("shapekit.events").exception(
                    "listener %r failed; it is told further events, and further failures are not logged",
                    listener,
                )

    return hear


class Listening:
    """What `listen` returns: ends by `close()`, or as a context manager."""

    __slots__ = ("_ears", "_hear")

    def __init__(self, ears: Ears, hear: Callable[[Event], None]) -> None:
        # Whoever keeps what `listen` returned does not keep the shaper listening.
        self._ears = ref(ears)
        self._hear = hear

    def close(self) -> None:
        """Listen no more. A thread that is about to tell something may still do so."""
        ears = self._ears()
        if ears is not None:
            ears.drop(self._hear)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


EVERYWHERE = Ears()


def listen(listener: Listener) -> Listening:
    """Tell the listener what happens to all shapers, policies and stores of this process, from now on."""
    return EVERYWHERE.add(listener)
