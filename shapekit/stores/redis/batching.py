"""Lines: concurrent asynchronous callers of one key share one trip.

While a trip of a key is under way, further calls stand in line, and the whole line leaves as one
script call when it is back; those in a row that ask the same are one run (`Run` in operation.py). A caller
that finds the line empty goes at once. If a caller goes away while the trip is under way, the others go on,
and what was taken for it is given back before any other call takes something.

`Loop`, `Loops`: the client of each event loop, for connections belong to their loop, and the lines of the
calls there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

from shapekit._runtime import forks
from shapekit._runtime.drivers import Driver, running_loop
from shapekit.algorithms.operation import Operation, Undo
from shapekit.errors import ShapekitError
from shapekit.stores.base import Key
from shapekit.stores.redis.connections import Link
from shapekit.stores.redis.protocol import Asked, Conversation, RedisProgram

MOST_AT_ONCE = 256
"""Callers in one trip: a script that runs longer would keep all other callers waiting."""


Waiting: TypeAlias = "tuple[Asked, asyncio.Future[Any] | None]"
"""One call, and the task that waits for its answer; None where it only gives back."""


class Line:
    """Those who call one key on one event loop."""

    def __init__(
        self,
        moment: Callable[[], str],
        trip: Callable[[list[Asked]], Awaitable[list[Any]]],
        leave: Callable[[], object],
    ) -> None:
        self._moment = moment
        self._trip = trip
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Waiting] = deque()
        self._under_way: list[Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, operation: Operation, args: tuple[Any, ...]) -> Any:
        """The answer to one call; calls that come while a trip is under way share the next."""
        waiter = self._loop.create_future()
        self._waiting.append(((operation, args, self._moment()), waiter))
        self._go()
        try:
            return await waiter
        except asyncio.CancelledError:
            # The answer may have come in the very moment in which the caller went away.
            if not waiter.cancelled() and waiter.exception() is None:
                self._give_back(operation.undone(args, waiter.result()))
            raise

    def _go(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    def _give_back(self, undos: tuple[Undo, ...]) -> None:
        if undos:
            # Ahead of all who wait, who may have the place; and the last who went first, for a tail retracts.
            self._waiting.extendleft(((*undo, self._moment()), None) for undo in reversed(undos))
            self._go()

    async def _run(self) -> None:
        try:
            while self._waiting:
                first = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
                self._under_way = [one for one in first if one[1] is None or not one[1].done()]
                if self._under_way:
                    await self._serve(self._under_way)
                self._under_way = []
        except GeneratorExit:
            raise  # thrown away, as those are who wait
        except BaseException:
            # The loop is being shut down.
            for _, waiter in (*self._under_way, *self._waiting):
                if waiter is not None:
                    waiter.cancel()
            raise
        finally:
            self._task = None
            self._leave()

    async def _serve(self, batch: list[Waiting]) -> None:
        try:
            answers = await self._trip([asked for asked, _ in batch])
        except Exception as error:
            for _, waiter in batch:
                if waiter is not None and not waiter.done():
                    waiter.set_exception(_own(error))
            return
        for ((operation, args, _), waiter), answer in zip(batch, answers, strict=True):
            if waiter is None:
                continue
            if isinstance(answer, Exception):
                if not waiter.done():
                    waiter.set_exception(answer)
            elif waiter.done():
                self._give_back(operation.undone(args, answer))
            else:
                waiter.set_result(answer)


def _own(error: Exception) -> Exception:
    """An exception for each caller: a shared one would collect all their tracebacks."""
    own = copy(error)
    own.__cause__ = error.__cause__
    return own


class Loop:
    """One event loop's client and lines."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._lines: dict[tuple[RedisProgram, Key], Line] = {}
        self._errands: set[asyncio.Task[None]] = set()

    def line(self, remote: RedisProgram, key: Key) -> Line:
        """Those who call a key."""
        place = (remote, key)
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = Line(
                remote.moment,
                lambda calls: self.talk(remote.share(key, calls)),
                lambda: self._lines.pop(place, None),
            )
        return line

    async def ask_each(
        self, remote: RedisProgram, operation: Operation, keys: Sequence[Key], args: tuple[Any, ...]
    ) -> list[Any]:
        """The answers for each of several keys; if the caller goes away, what was taken is given back."""
        task = asyncio.create_task(self._answers(remote, operation, keys, args))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            thread_call = asyncio.create_task(self._give_back(remote, operation, keys, args, task))
            self._errands.add(thread_call)
            thread_call.add_done_callback(self._errands.discard)
            raise

    async def _answers(
        self, remote: RedisProgram, operation: Operation, keys: Sequence[Key], args: tuple[Any, ...]
    ) -> list[Any]:
        answers: list[Any] = []
        for trip in remote.trips_for(keys, operation, args):
            answers += await self.talk(trip)
        return answers

    async def _give_back(
        self,
        remote: RedisProgram,
        operation: Operation,
        keys: Sequence[Key],
        args: tuple[Any, ...],
        task: asyncio.Task[list[Any]],
    ) -> None:
        with suppress(ShapekitError):
            for key, answer in zip(keys, await task, strict=True):
                for undo, undo_args in operation.undone(args, answer):
                    await self.line(remote, key).ask(undo, undo_args)

    def close(self) -> None:
        """Close the client. Said on the loop itself, which does it as soon as it can."""
        task = asyncio.get_running_loop().create_task(self.link.aclose())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def talk(self, conversation: Conversation) -> Any:
        """What a conversation comes to."""
        try:
            command = next(conversation)
            while True:
                command = conversation.send(await self.link.asay(command))
        except StopIteration as end:
            return end.value


class Loops:
    """Each event loop's own; where the caller gave one client, that of the loop that used it first."""

    def __init__(self, connect: Callable[[], Link], *, many: bool) -> None:
        self._connect = connect
        self._many = many
        self._loops: WeakKeyDictionary[Any, Loop] = WeakKeyDictionary()
        self._lock = forks.lock()
        # Nearly every call comes from the same loop again.
        self._recent: tuple[Callable[[], Any], Loop | None] = (lambda: self, None)

    def here(self) -> Loop | None:
        """That of the running asyncio loop; None on trio, and where there is none to be had."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return None
        if self._recent[0]() is running:
            return self._recent[1]
        with self._lock:
            found = self._loops.get(running)
            if found is not None:
                self._recent = (ref(running), found)
                return found
            if self._loops and not self._many:
                return None
            # A connection knows its loop: neither would ever go by itself.
            for ended in [loop for loop in self._loops if loop.is_closed()]:
                del self._loops[ended]
            found = self._loops[running] = Loop(self._connect())
            return found

    async def close(self, driver: Driver) -> None:
        """Close the client of the running loop, if that is awaited; loops on other threads close theirs."""
        with self._lock:
            loops = dict(self._loops)
        own = loops.pop(running_loop(), None)
        for loop, other in loops.items():
            if loop.is_running():
                with suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(other.close)
        if own is not None and driver.loop() is not None:
            await own.link.aclose()
