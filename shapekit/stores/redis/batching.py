"""Lines: concurrent asynchronous callers of one key share one trip.

While a trip of a key is under way, whoever else calls stands in line, and the whole line leaves as one
script call when it is back. A caller who finds nobody there goes at once. A caller who goes away while
the trip is under way is not missed by the others, and what was taken for it is given back, before anybody
else takes something.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any, TypeAlias

from shapekit.algorithms.operation import Operation, Undo

MOST_AT_ONCE = 256
"""Callers in one trip: a script that runs longer would keep everybody else's waiting."""


Asked: TypeAlias = "tuple[Operation, tuple[Any, ...], str, asyncio.Future[Any] | None]"
"""One call, as it was made and as the script reads it; and who waits for its answer: nobody, where it
only gives back."""


class Line:
    """Those who call one key on one event loop."""

    def __init__(
        self,
        say: Callable[[Operation, tuple[Any, ...]], str],
        trip: Callable[[list[Asked]], Awaitable[list[Any]]],
        leave: Callable[[], object],
    ) -> None:
        self._say = say
        self._trip = trip
        self._leave = leave
        self._asked: deque[Asked] = deque()
        self._under_way: list[Asked] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, operation: Operation, args: tuple[Any, ...]) -> Any:
        """The answer to one call."""
        waiter = asyncio.get_running_loop().create_future()
        self._asked.append((operation, args, self._say(operation, args), waiter))
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
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _give_back(self, undos: tuple[Undo, ...]) -> None:
        if undos:
            # Ahead of all who wait, who may have the place; and the last who went first, for a tail retracts.
            self._asked.extendleft((*undo, self._say(*undo), None) for undo in reversed(undos))
            self._go()

    async def _run(self) -> None:
        try:
            while self._asked:
                first = [self._asked.popleft() for _ in range(min(MOST_AT_ONCE, len(self._asked)))]
                self._under_way = [asked for asked in first if asked[3] is None or not asked[3].done()]
                if self._under_way:
                    await self._serve(self._under_way)
                self._under_way = []
        except GeneratorExit:
            raise  # thrown away, as those are who wait
        except BaseException:
            # The loop is being shut down.
            for _, _, _, waiter in (*self._under_way, *self._asked):
                if waiter is not None:
                    waiter.cancel()
            raise
        finally:
            self._task = None
            self._leave()

    async def _serve(self, batch: list[Asked]) -> None:
        try:
            answers = await self._trip(batch)
        except Exception as error:
            for _, _, _, waiter in batch:
                if waiter is not None and not waiter.done():
                    waiter.set_exception(_own(error))
            return
        for (operation, args, _, waiter), answer in zip(batch, answers, strict=True):
            if waiter is None:
                continue
            if waiter.done():
                self._give_back(operation.undone(args, answer))
            else:
                waiter.set_result(answer)


def _own(error: Exception) -> Exception:
    """An exception for each caller: a shared one would collect all their tracebacks."""
    own = copy(error)
    own.__cause__ = error.__cause__
    return own
