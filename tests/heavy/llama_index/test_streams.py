"""Streams that end before their usage are settled at what was seen, however they end."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse

from shapekit.integrations.llama_index import ShapedRateLimiter

from ...llm.frameworks import WAYS, aleave, cancel_where_it_is_stuck, counting, leave
from .conftest import all_done
from .fakes import RAW, Answering

STREAMS = [("stream_chat", [ChatMessage("why?")]), ("stream_complete", "why?")]
INPUT, RESERVED = 3, 103
PIECES = 1
SEEN = INPUT + 2
"""After the first of two pieces: its letters."""


@pytest.fixture
def made(clock):
    """Makes a model with a budget that counts letters."""
    budgets = []

    def model(on_abort="seen", kind=Answering, **options):
        budget = counting(len, INPUT, on_abort, clock)
        budgets.append(budget)
        return kind(rate_limiter=ShapedRateLimiter(budget), breaks=1, **options)

    yield model
    for budget in budgets:
        budget.close()


@pytest.fixture
def used(afterwards):
    """The number of tokens that a model's budget is charged."""

    def count(model):
        all_done()
        afterwards()
        return model.rate_limiter._limit.quotas()[0].used

    return count


async def aread(model, call, way):
    name, prompt = call
    await aleave(await getattr(model, f"a{name}")(prompt), way, PIECES)


@pytest.mark.parametrize("on_abort", ["seen", "estimate"])
@pytest.mark.parametrize("form", ["sync", "asyncio"])
@pytest.mark.parametrize("call", STREAMS)
@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_ends_before_its_usage_costs_what_was_seen(made, used, form, call, way, on_abort):
    model = made(on_abort, errors=[ConnectionResetError()] if way == "lost" else [])
    with suppress(LookupError, ConnectionResetError):
        if form == "sync":
            name, prompt = call
            leave(getattr(model, name)(prompt), way, PIECES)
        else:
            asyncio.run(aread(model, call, way))
    assert used(model) == (SEEN if on_abort == "seen" else RESERVED)


@pytest.mark.parametrize("on_abort", ["seen", "estimate"])
@pytest.mark.parametrize("call", STREAMS)
def test_a_cancelled_stream_costs_what_was_seen(made, used, call, on_abort):
    model = made(on_abort)

    async def read(stuck):
        model.stuck = stuck
        await aread(model, call, "cancelled")

    cancel_where_it_is_stuck(read)
    assert used(model) == (SEEN if on_abort == "seen" else RESERVED)


@pytest.mark.parametrize("call", STREAMS)
def test_a_complete_stream_without_a_usage_costs_what_was_seen(made, used, do, call):
    model = made(tells=False)
    assert len(do.stream(model, *call)) == 2
    assert used(model) == SEEN + 1


def test_the_raw_answer_of_the_server_counts_before_its_text(made, used):
    class Raw(Answering):
        def _chat(self, prompt):
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
