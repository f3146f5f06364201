"""Streams that end before their usage are settled at what was seen, however they end."""

import asyncio
from contextlib import suppress

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.function import (
    DeltaThinkingPart,
    DeltaToolCall,
    FunctionModel,
    FunctionStreamedResponse,
)
from pydantic_ai.usage import RequestUsage

from shapekit.integrations.pydantic_ai import ShapedModel

from ...llm.frameworks import cancel_where_it_is_stuck, counting
from ...llm.streams import words

INPUT, RESERVED = 2, 102
SEEN = INPUT + 2
"""After two words."""


@pytest.fixture
def silent(monkeypatch):
    """A stream whose server sends no usage: Pydantic AI would count that of a function itself."""
    monkeypatch.setattr(FunctionStreamedResponse, "usage", RequestUsage())


@pytest.fixture
def budget(clock):
    return lambda on_abort="seen": counting(words, INPUT, on_abort, clock)


@pytest.fixture
def used(afterwards):
    def count(limits):
        afterwards()
        [day] = limits.quotas()
        return day.used

    return count


def model(limits, then=None):
    async def answer(messages, info):
        yield "one "
        yield "two "
        if then is not None:
            await then()
        yield "three"

    return ShapedModel(FunctionModel(stream_function=answer), limits)


async def read(limits, way, then=None):
    async with Agent(model(limits, then)).run_stream("why?") as answer:
        async for text in answer.stream_text(debounce_by=None):
            if text == "one two " and way == "left":
                return
            if text == "one two " and way == "raised in":
                raise LookupError
            if text == "one two " and way == "refused elsewhere":
                raise ModelHTTPError(400, "another")
            if text == "one two " and way == "cancelled by hand":
                await answer.cancel()
                return


async def lost():
    raise ConnectionResetError


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("on_abort", ["seen", "estimate"])
@pytest.mark.parametrize("way", ["left", "raised in", "refused elsewhere", "cancelled by hand", "lost"])
def test_a_stream_that_ends_before_its_usage_costs_what_was_seen(budget, used, way, on_abort):
    limits = budget(on_abort)
    with suppress(LookupError, ModelHTTPError, ConnectionResetError, NotImplementedError):
        asyncio.run(read(limits, way, lost if way == "lost" else None))
    assert used(limits) == (SEEN if on_abort == "seen" else RESERVED)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("on_abort", ["seen", "estimate"])
def test_a_cancelled_stream_costs_what_was_seen(budget, used, on_abort):
    limits = budget(on_abort)
    cancel_where_it_is_stuck(lambda stuck: read(limits, "read", stuck))
    assert used(limits) == (SEEN if on_abort == "seen" else RESERVED)


@pytest.mark.usefixtures("silent")
def test_a_stream_whose_reader_is_thrown_away_costs_what_was_seen(budget, used):
    limits = budget()

    async def reader():
        async with Agent(model(limits)).run_stream("why?") as answer:
            async for _ in answer.stream_text(debounce_by=None):
                yield

    async def main():
        reading = reader()
        await anext(reading), await anext(reading)

    asyncio.run(main())
    assert used(limits) == SEEN


@pytest.mark.usefixtures("silent")
def test_a_complete_stream_without_a_usage_costs_what_was_seen(budget, used):
    limits = budget()
    asyncio.run(read(limits, "read"))
    assert used(limits) == SEEN + 1


@pytest.mark.usefixtures("silent")
def test_thoughts_and_arguments_of_tools_are_seen(budget, used):
    limits = budget()

    async def answer(messages, info):
        yield {0: DeltaThinkingPart(content="one two three ")}
        yield {1: DeltaToolCall(name="look", json_args="four five")}
        raise ConnectionResetError

    async def main():
        agent = Agent(ShapedModel(FunctionModel(stream_function=answer), limits))
        with pytest.raises(ConnectionResetError):
            async with agent.run_stream("why?"):
                pass

    asyncio.run(main())
    assert used(limits) == INPUT + 5


def test_an_input_usage_that_the_stream_contains_counts(budget, used, monkeypatch):
    limits = budget()
    monkeypatch.setattr(FunctionStreamedResponse, "usage", RequestUsage(input_tokens=50, output_tokens=1))
    asyncio.run(read(limits, "left"))
    assert used(limits) == 50 + 2
