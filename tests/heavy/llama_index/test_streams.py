"""Streams that end before they have told their usage: they are settled at what was seen, however they end."""

import asyncio
from contextlib import aclosing, closing, suppress
from types import SimpleNamespace

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse

from shapekit import LLMBudget
from shapekit.integrations.llama_index import ShapedRateLimiter

from .conftest import all_done
from .fakes import RAW, Answering

STREAMS = [("stream_chat", [ChatMessage("why?")]), ("stream_complete", "why?")]
INPUT, RESERVED = 3, 103
SEEN = INPUT + 2
"""After the first of two pieces: its letters."""
WAYS = ["closed", "left", "raised in", "lost"]


@pytest.fixture
def made(clock):
    """Makes a model with a budget that counts letters."""
    budgets = []

    def model(on_abort="seen", kind=Answering, **options):
        limits = {"tokens": "60k/min", "tokens_per_day": 1_000_000, "estimate": (INPUT, 100), "count": len}
        budget = LLMBudget(**limits, on_abort=on_abort, clock=clock)
        budgets.append(budget)
        return kind(rate_limiter=ShapedRateLimiter(budget), breaks=1, **options)

    yield model
    for budget in budgets:
        budget.close()


@pytest.fixture
def used(afterwards):
    """How many tokens a model's budget is charged."""

    def count(model):
        all_done()
        afterwards()
        return model.rate_limiter._limit.quotas()[0].used

    return count


def read(model, call, way):
    name, asked = call
    stream = getattr(model, name)(asked)
    if way == "closed":
        with closing(stream):
            next(stream)
        return
    for _ in stream:
        if way == "left":
            return
        if way == "raised in":
            raise LookupError


async def aread(model, call, way):
    name, asked = call
    stream = await getattr(model, f"a{name}")(asked)
    if way == "closed":
        async with aclosing(stream):
            await anext(stream)
        return
    async for _ in stream:
        if way == "left":
            return
        if way == "raised in":
            raise LookupError


@pytest.mark.parametrize("on_abort", ["seen", "estimate"])
@pytest.mark.parametrize("form", ["sync", "asyncio"])
@pytest.mark.parametrize("call", STREAMS)
@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_did_not_tell_costs_what_was_seen(made, used, form, call, way, on_abort):
    model = made(on_abort, errors=[ConnectionResetError()] if way == "lost" else [])
    with suppress(LookupError, ConnectionResetError):
        read(model, call, way) if form == "sync" else asyncio.run(aread(model, call, way))
    assert used(model) == (SEEN if on_abort == "seen" else RESERVED)


@pytest.mark.parametrize("on_abort", ["seen", "estimate"])
@pytest.mark.parametrize("call", STREAMS)
def test_a_cancelled_stream_costs_what_was_seen(made, used, call, on_abort):
    async def main():
        came = asyncio.Event()

        async def stuck():
            came.set()
            await asyncio.Event().wait()

        model = made(on_abort, stuck=stuck)
        task = asyncio.create_task(aread(model, call, "read"))
        await came.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return model

    assert used(asyncio.run(main())) == (SEEN if on_abort == "seen" else RESERVED)


@pytest.mark.parametrize("call", STREAMS)
def test_a_stream_that_ends_and_tells_nothing_costs_what_was_seen(made, used, do, call):
    model = made(tells=False)
    assert len(do.stream(model, *call)) == 2
    assert used(model) == SEEN + 1


def test_what_the_server_sent_counts_before_the_text_that_is_made_of_it(made, used):
    class Raw(Answering):
        def _chat(self, asked):
            call = SimpleNamespace(function=SimpleNamespace(arguments="four"))
            for delta in (SimpleNamespace(content="ye"), SimpleNamespace(tool_calls=[call])):
                raw = SimpleNamespace(choices=[SimpleNamespace(delta=delta)])
                yield ChatResponse(message=ChatMessage("ye"), delta="ye", raw=raw)
            yield ChatResponse(message=ChatMessage("yes"), delta="s", raw=RAW)

    model = made(kind=Raw)
    stream = model.stream_chat([ChatMessage("why?")])
    next(stream), next(stream)
    stream.close()
    assert used(model) == INPUT + len("ye" + "four")
