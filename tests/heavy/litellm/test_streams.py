"""Streams settle the usage that they contain, or what LiteLLM or `budget.wrap` has seen of them."""

import asyncio
import gc
from contextlib import suppress
from decimal import Decimal

import litellm
import pytest
from litellm.exceptions import MidStreamFallbackError

from ...crew import PATIENCE_S
from .conftest import RESERVED
from .server import TOTAL
from .test_calls import MODEL, used

INPUT, WORD = 8, 1
"""The tokens that shapekit counts in the question, and LiteLLM in the answer: "abc" is one token."""
USAGE = {"include_usage": True}


@pytest.mark.parametrize("on_abort", ["seen", "estimate"])
@pytest.mark.parametrize("options", [USAGE, None])
def test_a_stream_settles_the_usage_at_its_end(budget, shape, question, callbacks_done, options, on_abort):
    limits = budget(on_abort=on_abort)
    shape(limits)

    async def ask():
        stream = await litellm.acompletion(**question, stream=True, stream_options=options)
        assert used(limits) == RESERVED
        async for _ in stream:
            pass
        await callbacks_done()

    asyncio.run(ask())
    if options:
        assert used(limits) == TOTAL
    elif on_abort == "seen":
        assert WORD < used(limits) < RESERVED / 2
    else:
        assert used(limits) == RESERVED


def test_cached_tokens_of_a_stream_cost_less_also_where_the_server_sends_its_usage_unrequested(
    budget, shape, question, server, callbacks_done
):
    server.unasked = {
        "prompt_tokens": 1_000,
        "completion_tokens": 20,
        "total_tokens": 1_020,
        "prompt_tokens_details": {"cached_tokens": 900},
    }
    prices = {"currency": "USD", MODEL: {"input": "10", "cached": "1", "output": "0"}}
    limits = budget(spend="1 USD/day", prices=prices)
    shape(limits)

    async def ask():
        async for _ in await litellm.acompletion(**question, stream=True):
            pass
        await callbacks_done()

    asyncio.run(ask())
    [day] = limits.spending(MODEL)
    assert day.used == Decimal("0.0019")


@pytest.mark.parametrize("on_abort", ["seen", "estimate"])
def test_a_stream_that_is_lost_settles_what_was_seen(
    budget, shape, question, server, callbacks_done, on_abort
):
    limits = budget(on_abort=on_abort)
    calls = shape(limits)
    server.pieces = 2
    server.cut.set()

    async def ask():
        stream = await litellm.acompletion(**question, stream=True, stream_options=USAGE)
        with pytest.raises(MidStreamFallbackError):
            async for _ in stream:
                pass
        await callbacks_done()

    asyncio.run(ask())
    if on_abort == "seen":
        assert 0 < used(limits) < RESERVED / 2
    else:
        assert used(limits) == RESERVED
    gc.collect()
    assert not calls._calls


def test_a_stream_that_is_left_keeps_its_reservation_and_nothing_else(budget, shape, question):
    limits = budget()
    calls = shape(limits)

    async def ask():
        stream = await litellm.acompletion(**question, stream=True, stream_options=USAGE)
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(ask())
    assert used(limits) == RESERVED
    gc.collect()
    assert not calls._calls


async def read(stream, way, came):
    number = 0
    async for _ in stream:
        number += 1
        if number < 2:
            continue
        came.set()
        if way == "raised in":
            raise LookupError
        if way == "closed":
            await stream.aclose()
        if way in ("left", "closed"):
            return


@pytest.mark.parametrize("way", ["left", "closed", "raised in", "cancelled", "lost"])
@pytest.mark.parametrize("by", ["litellm", "router"])
def test_a_wrapped_stream_that_ends_before_its_usage_costs_what_was_seen(
    budget, question, server, afterwards, way, by
):
    limits = budget()
    server.pieces = 2
    if way == "lost":
        server.cut.set()

    async def main():
        ask = litellm.acompletion
        if by == "router":
            params = {"model": MODEL, "api_base": server.url, "api_key": "none"}
            ask = litellm.Router([{"model_name": MODEL, "litellm_params": params}], num_retries=0).acompletion
        arguments = {name: question[name] for name in ("model", "messages", "max_tokens")}
        stream = await limits.wrap(ask)(**(question if by == "litellm" else arguments), stream=True)
        came = asyncio.Event()
        task = asyncio.create_task(read(stream, way, came))
        await asyncio.wait_for(came.wait(), PATIENCE_S)
        if way == "cancelled":
            await asyncio.sleep(0)
            task.cancel()
        with suppress(
            LookupError, asyncio.CancelledError, MidStreamFallbackError, litellm.APIConnectionError
        ):
            await task

    asyncio.run(main())
    gc.collect()  # the error has the stream in its traceback
    afterwards()
    assert used(limits, "default") == INPUT + WORD


def test_a_wrapped_synchronous_stream_that_is_left_costs_what_was_seen(budget, question, server, afterwards):
    limits = budget()
    server.pieces = 2
    stream = limits.wrap(litellm.completion)(**question, stream=True)
    next(stream), next(stream)
    del stream
    gc.collect()
    afterwards()
    assert used(limits, "default") == INPUT + WORD
