"""One flow, two drivers: what a call does is written once, for threads and for event loops.

A flow is a coroutine function whose first argument is its driver. Whatever takes time (a trip to the store,
a sleep) it asks the driver for. `TASKS` awaits that. `THREADS` does it on the spot: there a flow never
suspends, and `run` takes it from its first line to its last in one step.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

from shapekit._runtime import background
from shapekit._runtime.loops import AsyncAlarm, given_back, running_loop, shielded, stop_if_cancelled
from shapekit._runtime.sleepers import Sleepers, warn_in_event_loop
from shapekit.clock import Clock

__all__ = ["TASKS", "THREADS", "Alarm", "Driver", "Twin", "run"]

P = ParamSpec("P")
T = TypeVar("T")
Alarm: TypeAlias = "threading.Event | AsyncAlarm"


class Twin(NamedTuple, Generic[T]):
    """One thing that can be done as a call, and awaited."""

    call: Callable[..., T]
    acall: Callable[..., Awaitable[T]]


class Driver(ABC):
    """What a flow waits by."""

    alarm: Callable[[], Any]
    """Makes what ends a sleep."""

    @abstractmethod
    def ask(self, twin: Twin[T], /, *args: Any, **named: Any) -> Awaitable[T]:
        """What comes of it."""

    @abstractmethod
    async def sleep(
        self, sleepers: Sleepers, until_us: int, order: int = 0, *, others_too: bool = False, news: Any = None
    ) -> None:
        """Until then, or until the alarm `news` rings; tasks of one loop go in the order given."""

    @abstractmethod
    async def let_earlier_go(self, sleepers: Sleepers, due_us: int, order: int) -> None:
        """Let the tasks of this loop go first that are due as well, and have a lower one."""

    @abstractmethod
    async def pause(self, clock: Clock, seconds: float, alarm: Any) -> None:
        """Until the alarm rings, or for so long on the clock."""

    @abstractmethod
    async def wait(self, alarm: Any, seconds: float | None = None) -> None:
        """Until the alarm rings, or for so long; None for as long as it takes."""

    @abstractmethod
    def loop(self) -> object:
        """The event loop that runs the flow; None in a thread."""

    @abstractmethod
    async def stop_if_cancelled(self) -> None:
        """End here if the task was cancelled already."""

    @abstractmethod
    def shielded(self) -> AbstractContextManager[object]:
        """A context that a cancelled task finishes."""

    @abstractmethod
    def may_be_thrown(self) -> None:
        """Prepare for what the collector does with a coroutine that is thrown away."""

    @abstractmethod
    async def given_back(
        self,
        error: BaseException,
        give_back: Callable[[], Awaitable[object]],
        thrown: Callable[[], object] | None = None,
    ) -> None:
        """Give back what was taken, in an `except BaseException as error` whose block holds something.

        That is awaited in a cancelled task, too. A coroutine that is thrown away awaits nothing: see
        `cancellation`. Another thread then calls `thrown`, if `may_be_thrown` was called before.
        """


class _Threads(Driver):
    alarm = threading.Event

    async def ask(self, twin: Twin[T], /, *args: Any, **named: Any) -> T:
        return twin.call(*args, **named)

    async def sleep(
        self, sleepers: Sleepers, until_us: int, order: int = 0, *, others_too: bool = False, news: Any = None
    ) -> None:
        if news is None:
            sleepers.sleep(until_us)
        else:
            await sleepers.rest(self, news, until_us)

    async def let_earlier_go(self, sleepers: Sleepers, due_us: int, order: int) -> None:
        """Threads have no order among each other."""

    async def pause(self, clock: Clock, seconds: float, alarm: Any) -> None:
        warn_in_event_loop()
        clock.sleep(seconds, alarm)

    async def wait(self, alarm: Any, seconds: float | None = None) -> None:
        alarm.wait(seconds)

    def loop(self) -> object:
        return None

    async def stop_if_cancelled(self) -> None:
        """A thread is not cancelled."""

    def shielded(self) -> AbstractContextManager[object]:
        return nullcontext()

    def may_be_thrown(self) -> None:
        """A call in a thread ends by itself."""

    async def given_back(
        self,
        error: BaseException,
        give_back: Callable[[], Awaitable[object]],
        thrown: Callable[[], object] | None = None,
    ) -> None:
        await give_back()


class _Tasks(Driver):
    alarm = AsyncAlarm

    def ask(self, twin: Twin[T], /, *args: Any, **named: Any) -> Awaitable[T]:
        return twin.acall(*args, **named)

    async def sleep(
        self, sleepers: Sleepers, until_us: int, order: int = 0, *, others_too: bool = False, news: Any = None
    ) -> None:
        await sleepers.asleep(until_us, order, others_too=others_too, news=news)

    async def let_earlier_go(self, sleepers: Sleepers, due_us: int, order: int) -> None:
        await sleepers.asleep(due_us, order, others_too=True)

    async def pause(self, clock: Clock, seconds: float, alarm: Any) -> None:
        await clock.asleep(seconds, alarm)

    async def wait(self, alarm: Any, seconds: float | None = None) -> None:
        await alarm.wait(seconds)

    def loop(self) -> object:
        return running_loop()

    async def stop_if_cancelled(self) -> None:
        await stop_if_cancelled()

    def shielded(self) -> AbstractContextManager[object]:
        return shielded()

    def may_be_thrown(self) -> None:
        background.ready()

    async def given_back(
        self,
        error: BaseException,
        give_back: Callable[[], Awaitable[object]],
        thrown: Callable[[], object] | None = None,
    ) -> None:
        if isinstance(error, GeneratorExit) and thrown is not None:
            background.do(thrown)
        await given_back(error, give_back)


THREADS: Driver = _Threads()
TASKS: Driver = _Tasks()


def run(
    flow: Callable[Concatenate[Driver, P], Coroutine[Any, Any, T]], /, *args: P.args, **named: P.kwargs
) -> T:
    """Take a flow from its first line to its last, in this thread."""
    try:
        # In one line: an interrupt between the two would leave a coroutine that was never awaited.
        flow(THREADS, *args, **named).send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise RuntimeError("a flow waited for something that it did not ask its driver for")
