"""What a Redis store keeps for each event loop: a client, because connections belong to their loop, and
the lines of those who call there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, ref

from shapekit.errors import ShapekitError
from shapekit.stores.base import Key, Operation
from shapekit.stores.coalesce import Asked, Line
from shapekit.stores.redis_link import AsyncLink
from shapekit.stores.redis_program import Conversation, RedisProgram
from shapekit.stores.undo import undos_of


class Loop:
    """One event loop's client and lines."""

    def __init__(self, link: AsyncLink) -> None:
        self.link = link
        self._lines: dict[tuple[RedisProgram, Key], Line] = {}
        self._errands: set[asyncio.Task[None]] = set()

    def line(self, remote: RedisProgram, key: Key) -> Line:
        """Where those stand who call this key: all of them share a trip with whoever calls meanwhile."""
        place = (remote, key)
        line = self._lines.get(place)
        if line is None:
            keys = remote.keys_of(key)

            async def trip(batch: list[Asked]) -> list[Any]:
                calls = f"[{','.join([said for _, _, said, _ in batch])}]"
                operations: list[Operation] = [operation for operation, _, _, _ in batch]
                replies = await self.talk(remote.converse(keys, operations, calls))
                return [
                    remote.answer(operation, reply)
                    for (operation, _, _, _), reply in zip(batch, replies, strict=True)
                ]

            line = self._lines[place] = Line(remote.call, trip, lambda: self._lines.pop(place, None))
        return line

    async def ask_each(
        self,
        remote: RedisProgram,
        keys: list[Key],
        operation: Operation,
        args: tuple[Any, ...],
        *,
        apart: bool,
    ) -> list[Any]:
        """The answers for each of several keys; if the caller goes away, what was taken is given back."""
        task = asyncio.create_task(self._answers(remote, keys, operation, args, apart=apart))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            errand = asyncio.create_task(self._give_back(remote, keys, operation, args, task))
            self._errands.add(errand)
            errand.add_done_callback(self._errands.discard)
            raise

    async def _answers(
        self,
        remote: RedisProgram,
        keys: list[Key],
        operation: Operation,
        args: tuple[Any, ...],
        *,
        apart: bool,
    ) -> list[Any]:
        answers: list[Any] = []
        for trip in remote.trips_for(keys, operation, args, apart=apart):
            answers += await self.talk(trip)
        return [remote.answer(operation, sent) for sent in answers]

    async def _give_back(
        self,
        remote: RedisProgram,
        keys: list[Key],
        operation: Operation,
        args: tuple[Any, ...],
        task: asyncio.Task[list[Any]],
    ) -> None:
        with suppress(ShapekitError):
            for key, answer in zip(keys, await task, strict=True):
                for undo in undos_of(operation, args, answer):
                    await self.line(remote, key).ask(*undo)

    async def talk(self, conversation: Conversation) -> Any:
        """What a conversation comes to."""
        try:
            command = next(conversation)
            while True:
                command = conversation.send(await self.link.say(command))
        except StopIteration as end:
            return end.value


class Loops:
    """Each event loop's own; where the caller gave one client, that of the loop that used it first."""

    def __init__(self, connect: Callable[[], AsyncLink], *, many: bool) -> None:
        self._connect = connect
        self._many = many
        self._loops: WeakKeyDictionary[Any, Loop] = WeakKeyDictionary()
        self._lock = threading.Lock()
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

    async def aclose(self) -> None:
        """Close the client of the running loop."""
        here = self.here() if self._loops else None
        if here is not None:
            await here.link.aclose()
