"""Attempts that LiteLLM awaits: they wait, are refused, settle what they used, and leave nothing behind."""

import asyncio
import gc
import pickle

import litellm
import pytest

from shapekit import ConfigError, ManualClock
from shapekit.errors import QueueFullError as ShapekitQueueFullError
from shapekit.integrations.litellm import CostExceedsLimitError, QueueFullError, ShapedCalls

from ...crew import PATIENCE_S
from .conftest import RESERVED
from .server import TOTAL, refused

MODEL = "openai/some"


def used(budget, key=MODEL):
    [day] = budget.quotas(key)
    return day.used


def test_an_attempt_takes_its_tokens_and_settles_the_usage_of_its_answer(budget, shape, question, clock):
    limits = budget()
    shape(limits)

    async def ask():
        for _ in range(3):
            answer = await litellm.acompletion(**question)
            assert answer.usage.total_tokens == TOTAL

    asyncio.run(ask())
    assert used(limits) == 3 * TOTAL
    assert round(clock.now(), 3) == 0.2  # each had a slot


def test_an_answer_without_a_usage_is_charged_as_reserved(budget, shape, question, server):
    limits = budget()
    shape(limits)
    server.usage = None
    answer = asyncio.run(litellm.acompletion(**question))
    assert answer.usage.total_tokens == 0  # which LiteLLM has made up
    assert used(limits) == RESERVED


def test_positional_arguments_count_too(budget, shape, question, server):
    limits = budget()
    shape(limits)
    server.gate.clear()
    options = {name: question[name] for name in ("max_tokens", "api_base", "api_key", "max_retries")}

    async def ask():
        waiting = asyncio.create_task(litellm.acompletion(MODEL, question["messages"], **options))
        assert await asyncio.to_thread(server.came.acquire, timeout=PATIENCE_S)
        assert used(limits) == RESERVED
        server.gate.set()
        await waiting
        assert used(limits) == TOTAL
        with pytest.raises(ConfigError, match="write model="):
            await litellm.aresponses("why?", MODEL)

    asyncio.run(ask())


def test_a_wait_beyond_max_wait_is_refused_before_it_is_sent(budget, shape, question, server):
    limits = budget(requests="1/h")
    shape(limits, max_wait="1s")

    async def ask():
        await litellm.acompletion(**question)
        with pytest.raises(QueueFullError) as caught:
            await litellm.acompletion(**question)
        return caught.value

    error = asyncio.run(ask())
    assert isinstance(error, litellm.RateLimitError)
    assert isinstance(error, ShapekitQueueFullError)
    assert error.response.headers["retry-after"] == "60"  # a router leaves the deployment out no longer
    assert (error.status_code, error.code, error.max_wait) == (429, "queue_full", 1)
    assert pickle.loads(pickle.dumps(error)).retry_after == error.retry_after
    assert len(server.requests) == 1
    assert used(limits) == TOTAL


@pytest.mark.parametrize("ask", [litellm.acompletion, litellm.aresponses])
def test_a_refused_call_is_not_sent_as_a_retry(budget, shape, question, server, ask):
    shape(budget(tokens="50/min", requests="1/h"), max_wait="1s")
    if ask is litellm.aresponses:
        question["input"] = question.pop("messages")
    with pytest.raises(CostExceedsLimitError):
        asyncio.run(ask(**question, num_retries=2))
    assert server.requests == []


def test_a_call_with_fallbacks_takes_what_its_attempts_take(budget, shape, question, server):
    limits = budget()
    shape(limits)
    server.answers.append(refused(429, retry_after="60"))
    asyncio.run(litellm.acompletion(**question, fallbacks=["openai/other"]))
    assert [used(limits), used(limits, "openai/other")] == [0, TOTAL]
    assert len(server.requests) == 2


def test_a_call_that_is_larger_than_the_budget_is_a_bad_request(budget, shape, question, server):
    shape(budget(tokens="50/min"))
    with pytest.raises(CostExceedsLimitError) as caught:
        asyncio.run(litellm.acompletion(**question))
    assert isinstance(caught.value, litellm.BadRequestError)
    assert caught.value.code == "cost_exceeds_limit"
    assert not server.requests


def test_a_refusal_by_the_server_holds_the_key_and_costs_no_tokens(budget, shape, question, server, clock):
    limits = budget()
    shape(limits)
    server.answers.append(refused(429, retry_after=7))

    async def ask():
        with pytest.raises(litellm.RateLimitError):
            await litellm.acompletion(**question)
        assert used(limits) == 0
        await litellm.acompletion(**question)

    asyncio.run(ask())
    assert 7 <= clock.now() < 7.2


def test_an_error_of_the_server_keeps_the_reservation(budget, shape, question, server):
    limits = budget()
    shape(limits)
    server.answers.append(refused(500))
    with pytest.raises(litellm.InternalServerError):
        asyncio.run(litellm.acompletion(**question))
    assert used(limits) == RESERVED


def test_an_answer_whose_headers_show_too_few_tokens_holds_the_next_call(
    budget, shape, question, server, clock
):
    shape(budget())
    fields = {
        "x_ratelimit_limit_tokens": 1000,
        "x_ratelimit_remaining_tokens": 0,
        "x_ratelimit_reset_tokens": "60s",
    }
    server.answers.append(refused(200, **fields))

    async def ask():
        for _ in range(2):
            await litellm.acompletion(**question)

    asyncio.run(ask())
    assert clock.now() > 1


def test_a_cancelled_wait_takes_nothing(budget, shape, question, server, until_asleep):
    clock = ManualClock()
    limits = budget(requests="1/h burst 1", clock=clock)
    shape(limits)

    async def ask():
        await litellm.acompletion(**question)
        waiting = asyncio.create_task(litellm.acompletion(**question))
        await asyncio.to_thread(until_asleep, clock, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(ask())
    assert len(server.requests) == 1
    assert used(limits) == TOTAL


def test_a_call_that_is_cancelled_in_flight_keeps_its_reservation_and_nothing_else(
    budget, shape, question, server
):
    limits = budget()
    calls = shape(limits)
    server.gate.clear()

    async def ask():
        waiting = asyncio.create_task(litellm.acompletion(**question))
        assert await asyncio.to_thread(server.came.acquire, timeout=PATIENCE_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(ask())
    assert used(limits) == RESERVED
    gc.collect()
    assert not calls._calls


def test_a_synchronous_call_is_wrapped(budget, question, server, clock):
    limits = budget()
    ask = limits.wrap(litellm.completion)
    for _ in range(3):
        assert ask(**question).usage.total_tokens == TOTAL
    assert used(limits, "default") == 3 * TOTAL
    assert round(clock.now(), 3) == 0.2
    stream = ask(**question, stream=True, stream_options={"include_usage": True})
    # The calls before have shown that the question has 10 tokens, and not 8 as its bytes say.
    assert used(limits, "default") == 3 * TOTAL + RESERVED + 2
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == "abc"
    assert used(limits, "default") == 4 * TOTAL
    server.answers.append(refused(429, retry_after=7))
    with pytest.raises(litellm.RateLimitError):
        ask(**question)
    assert used(limits, "default") == 4 * TOTAL


def test_an_argument_that_is_no_budget_is_refused():
    with pytest.raises(ConfigError, match="is not an LLMBudget"):
        ShapedCalls("500/min")
