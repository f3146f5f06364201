"""A thousand streams, each ended at a random place in a random way: the books show exactly what was seen."""

import random
from contextlib import suppress

import anyio
import pytest
from anyio import lowlevel

from .streams import AsyncStream, Stream, words

pytestmark = pytest.mark.long

WAYS = ["broken off", "closed", "left", "raised in", "thrown away", "lost", "cancelled", "read"]
STREAMS = 1_000


class Model:
    """Answers in words, and counts those that it has sent."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.sent = 0

    def answer(self, is_lost):
        for _ in range(self.chance.randint(1, 20)):
            text = "word " * self.chance.randint(1, 9)
            self.sent += words(text)
            yield {"choices": [{"delta": {"content": text}}]}
        if is_lost:
            raise ConnectionResetError("lost")


def read(stream, way, items):
    """Reads so many items, and leaves the stream in this way."""
    if way == "left":
        with stream:
            for _ in zip(range(items), stream, strict=False):
                pass
    elif way == "raised in":
        next(stream, None)
        with suppress(LookupError), stream:
            raise LookupError
    elif way in ("lost", "read"):
        try:
            for _ in stream:
                pass
        except ConnectionResetError:
            assert way == "lost"
    else:
        for _ in range(items):
            next(stream, None)
        if way == "closed":
            stream.close()


async def aread(stream, way, items):
    if way == "left":
        async with stream:
            for _ in range(items):
                await anext(stream, None)
    elif way == "raised in":
        await anext(stream, None)
        with suppress(LookupError):
            async with stream:
                raise LookupError
    elif way in ("lost", "read"):
        try:
            async for _ in stream:
                pass
        except ConnectionResetError:
            assert way == "lost"
    else:
        for _ in range(items):
            await anext(stream, None)
        if way == "closed":
            await stream.close()
        elif way == "cancelled":
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anext(stream, None)


class Slow(AsyncStream):
    """Swallows the cancellation."""

    async def __anext__(self):
        await lowlevel.checkpoint()
        return await super().__anext__()


@pytest.mark.parametrize("kind", ["sync", "asyncio", "trio"])
def test_a_thousand_aborts_lose_no_tokens_of_a_day(budget, used, afterwards, kind):
    one = budget(tokens="10M/min", tokens_per_day=100_000_000, count=words)
    model, chance = Model(7), random.Random(kind)

    def ask(prompt, max_tokens):
        return Stream(model.answer(way == "lost"))

    async def aask(prompt, max_tokens):
        return Slow(model.answer(way == "lost"))

    async def main():
        nonlocal way
        for _ in range(STREAMS):
            way = chance.choice(WAYS)
            stream = await one.wrap(aask)(prompt="two words", max_tokens=4_000)
            await aread(stream, way, chance.randint(0, 25))

    way = ""
    if kind == "sync":
        for _ in range(STREAMS):
            way = chance.choice([way for way in WAYS if way != "cancelled"])
            read(one.wrap(ask)(prompt="two words", max_tokens=4_000), way, chance.randint(0, 25))
    else:
        anyio.run(main, backend=kind)
    afterwards()
    # The reader has read all words that the model sent: nothing is in flight, as it sends a part on demand.
    assert used(one) == STREAMS * 2 + model.sent
