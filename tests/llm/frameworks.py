"""Helpers of the tests of frameworks: a budget, both forms of their models, and ways to leave a call."""

import asyncio
from contextlib import aclosing, closing, suppress
from inspect import isawaitable
from types import SimpleNamespace

import pytest

from shapekit import LLMBudget, ManualClock

PER_DAY = 1_000_000
WAYS = ["closed", "left", "raised in", "lost"]
"""Ways in which a stream ends early; one that is lost raises by itself."""


@pytest.fixture
def budget(clock):
    """Ten calls a second, and a day whose quota shows what is charged."""
    limits = {"requests": "10/s burst 1", "tokens": "60k/min", "tokens_per_day": PER_DAY}
    with closing(LLMBudget(**limits, clock=clock)) as made:
        yield made


@pytest.fixture(params=["sync", "asyncio"])
def do(request):
    """The methods of a model, in one of its two forms."""

    def called(thing, name, *args, **kwargs):
        if request.param == "sync":
            return getattr(thing, name)(*args, **kwargs)

        async def acalled():
            return await getattr(thing, f"a{name}")(*args, **kwargs)

        return asyncio.run(acalled())

    def streamed(thing, name, *args):
        if request.param == "sync":
            return list(getattr(thing, name)(*args))

        async def astreamed():
            stream = getattr(thing, f"a{name}")(*args)
            return [item async for item in (await stream if isawaitable(stream) else stream)]

        return asyncio.run(astreamed())

    return SimpleNamespace(call=called, stream=streamed)


def counting(count, prompt_tokens, on_abort, clock):
    """A budget that counts the text of streams, with so many tokens estimated for the question."""
    limits = {"tokens": "60k/min", "tokens_per_day": PER_DAY, "estimate": (prompt_tokens, 100)}
    return LLMBudget(**limits, count=count, on_abort=on_abort, clock=clock)


def leave(stream, way, pieces):
    """Reads so many pieces, and leaves the stream in this way; otherwise reads it to its end."""
    if way == "closed":
        with closing(stream):
            for _ in range(pieces):
                next(stream)
        return
    for number, _ in enumerate(stream, 1):
        if number == pieces and way == "left":
            return
        if number == pieces and way == "raised in":
            raise LookupError


async def aleave(stream, way, pieces):
    if way == "closed":
        async with aclosing(stream):
            for _ in range(pieces):
                await anext(stream)
        return
    number = 0
    async for _ in stream:
        number += 1
        if number == pieces and way == "left":
            return
        if number == pieces and way == "raised in":
            raise LookupError


def cancel_where_it_is_stuck(read):
    """Cancels `await read(stuck)` when it has reached `await stuck()`."""

    async def main():
        came = asyncio.Event()

        async def stuck():
            came.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(read(stuck))
        await came.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


class WaitingIsTold(ManualClock):
    """Sets an event when a call begins to wait; its wait never ends."""

    def __init__(self):
        super().__init__()
        self.began = asyncio.Event()

    async def asleep(self, seconds, alarm=None):
        self.began.set()
        await super().asleep(seconds, alarm)


def cancel_the_second(ask, clock):
    """Runs `await ask()`, and cancels the second one when it has begun to wait."""

    async def main():
        await ask()
        task = asyncio.create_task(ask())
        await clock.began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
