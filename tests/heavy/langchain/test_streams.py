"""Streams that end before their usage are settled at what was seen, however they end."""

import asyncio
from contextlib import suppress

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk

from shapekit.integrations.langchain import ShapedRateLimiter

from ...llm.frameworks import WAYS, aleave, cancel_where_it_is_stuck, counting, leave
from ...llm.streams import words
from .models import Words

INPUT, RESERVED = 2, 102
PIECES = 2
SEEN = INPUT + PIECES
"""After two words."""


@pytest.fixture
def made(clock):
    """Makes a model with a budget that counts words."""
    budgets = []

    def model(on_abort="seen", kind=Words, **options):
        budget = counting(words, INPUT, on_abort, clock)
        budgets.append(budget)
        limiter = ShapedRateLimiter(budget)
        return kind(rate_limiter=limiter, callbacks=[limiter.handler], **options)

    yield model
    for budget in budgets:
        budget.close()


@pytest.fixture
def used(afterwards):
    """The number of tokens that a model's budget is charged."""

    def count(model):
        afterwards()
        return model.rate_limiter._limit.quotas()[0].used

    return count


@pytest.mark.parametrize("on_abort", ["seen", "estimate"])
@pytest.mark.parametrize("form", ["sync", "asyncio"])
@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_ends_before_its_usage_costs_what_was_seen(made, used, form, way, on_abort):
    model = made(on_abort, errors=[ConnectionResetError()] if way == "lost" else [])
    with suppress(LookupError, ConnectionResetError):
        if form == "sync":
            leave(model.stream("why?"), way, PIECES)
        else:
            asyncio.run(aleave(model.astream("why?"), way, PIECES))
    assert used(model) == (SEEN if on_abort == "seen" else RESERVED)


@pytest.mark.parametrize("on_abort", ["seen", "estimate"])
def test_a_cancelled_stream_costs_what_was_seen(made, used, on_abort):
    model = made(on_abort)

    async def read(stuck):
        model.stuck = stuck
        await aleave(model.astream("why?"), "cancelled", PIECES)

    cancel_where_it_is_stuck(read)
    assert used(model) == (SEEN if on_abort == "seen" else RESERVED)


def test_a_complete_stream_without_a_usage_costs_what_was_seen(made, used, do):
    model = made()
    assert len(do.stream(model, "stream", "why?")) >= 3
    assert used(model) == SEEN + 1


def test_a_stream_that_fails_before_its_first_piece_keeps_its_reservation(made, used, do):
    class Failing(Words):
        def _stream(self, *args, **kwargs):
            raise ConnectionResetError
            yield

    model = made(kind=Failing)
    with pytest.raises(ConnectionResetError):
        do.stream(model, "stream", "why?")
    assert used(model) == RESERVED


def test_thoughts_and_tool_arguments_and_usage_in_pieces_are_seen(made, used):
    usage = {"input_tokens": 50, "output_tokens": 0, "total_tokens": 50}
    more = {"input_tokens": 0, "output_tokens": 9, "total_tokens": 9}
    call = {"name": "look", "args": "four five", "id": "1", "index": 0, "type": "tool_call_chunk"}

    answer = [
        AIMessageChunk([{"type": "thinking", "thinking": "one two "}], usage_metadata=usage),
        AIMessageChunk("", additional_kwargs={"reasoning_content": "three "}),
        AIMessageChunk("", tool_call_chunks=[call]),
        AIMessageChunk("", usage_metadata=more),
    ]

    class Thinking(Words):
        def _stream(self, *args, **kwargs):
            yield from (ChatGenerationChunk(message=piece) for piece in answer)

    for pieces, output in [(1, 2), (2, 3), (3, 5), (4, 9)]:
        model = made(kind=Thinking)
        stream = model.stream("why?")
        for _ in range(pieces):
            next(stream)
        stream.close()
        assert used(model) == 50 + output
