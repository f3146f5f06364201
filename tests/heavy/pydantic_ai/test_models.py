"""Requests of agents: they wait, are refused, settle what they used, and leave nothing behind."""

import asyncio

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from shapekit import ConfigError, LLMBudget, ManualClock, Policy
from shapekit.integrations.pydantic_ai import (
    QueueFullError,
    ShapedConcurrencyLimiter,
    ShapedModel,
    ShapedRequests,
)

SETTINGS = {"max_tokens": 100}
USED = RequestUsage(input_tokens=10, output_tokens=20)


@pytest.fixture
def budget(clock):
    return lambda **options: LLMBudget(
        **{"requests": "10/s burst 1", "tokens": "90k/min", "tokens_per_day": "1M", "clock": clock, **options}
    )


class Model(FunctionModel):
    """Answers with `USED`, or raises the next of its errors."""

    def __init__(self, *errors, name="some"):
        self.errors = list(errors)
        self.calls = 0
        super().__init__(self._answer, stream_function=self._stream, model_name=name)

    async def _answer(self, messages, info):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return ModelResponse(parts=[TextPart("because")], usage=USED)

    async def _stream(self, messages, info):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        for word in ("be", "cause", "!"):
            yield word


def used(limits):
    [day] = limits.quotas()
    return day.used


def test_a_request_takes_its_tokens_and_settles_the_usage_of_its_answer(budget, clock):
    limits = budget()
    agent = Agent(ShapedModel(Model(), limits), model_settings=SETTINGS)

    async def ask():
        for _ in range(3):
            assert (await agent.run("why?")).output == "because"

    asyncio.run(ask())
    assert used(limits) == 3 * 30
    assert round(clock.now(), 3) == 0.2


def test_a_capability_shapes_the_requests_of_a_whole_agent(budget):
    limits = budget()
    agent = Agent(Model(), capabilities=[ShapedRequests(limits)], model_settings=SETTINGS)
    asyncio.run(agent.run("why?"))
    assert used(limits) == 30
    asyncio.run(agent.run("why?", model=Model(name="other")))
    assert used(limits) == 60


def test_a_request_reserves_its_texts_and_tools_and_its_longest_answer(budget):
    limits = budget()
    agent = Agent(ShapedModel(Model(ModelAPIError("some", "gone")), limits), instructions="x" * 300)

    @agent.tool_plain
    def weather(city: str) -> str:
        """Tell the weather. And what it was."""
        return city

    with pytest.raises(ModelAPIError):
        asyncio.run(agent.run("y" * 600, model_settings={"max_tokens": 7}))
    assert 300 + 7 < used(limits) < 300 + 7 + 150


def test_a_refusal_by_the_server_holds_the_key_and_costs_no_tokens(budget, clock):
    limits = budget()
    error = ModelHTTPError(429, "some", headers={"Retry-After": "7"})
    agent = Agent(ShapedModel(Model(error), limits), model_settings=SETTINGS)

    async def ask():
        with pytest.raises(ModelHTTPError):
            await agent.run("why?")
        assert used(limits) == 0
        await agent.run("why?")

    asyncio.run(ask())
    assert 7 <= clock.now() < 7.2


def test_an_error_of_the_server_keeps_the_reservation(budget):
    limits = budget()
    agent = Agent(ShapedModel(Model(ModelHTTPError(500, "some")), limits), model_settings=SETTINGS)
    with pytest.raises(ModelHTTPError):
        asyncio.run(agent.run("why?"))
    assert used(limits) > 100


def test_a_wait_beyond_max_wait_goes_to_the_next_model(budget):
    limits, model, next_model = budget(requests="1/h", max_wait=0), Model(), Model(name="next")
    agent = Agent(FallbackModel(ShapedModel(model, limits), next_model), model_settings=SETTINGS)
    for _ in range(3):
        asyncio.run(agent.run("why?"))
    assert (model.calls, next_model.calls) == (1, 2)
    assert used(limits) == 30


def test_a_refusal_is_an_error_of_both_libraries(budget):
    limits = budget(requests="1/h", max_wait="1s")
    agent = Agent(ShapedModel(Model(), limits), model_settings=SETTINGS)
    asyncio.run(agent.run("why?"))
    with pytest.raises(QueueFullError, match="exceeds max_wait=1 s") as caught:
        asyncio.run(agent.run("why?"))
    assert isinstance(caught.value, ModelAPIError)
    assert (caught.value.model_name, caught.value.max_wait) == ("some", 1)


def test_a_stream_settles_at_its_end(budget):
    limits = budget()
    agent = Agent(ShapedModel(Model(), limits), model_settings=SETTINGS)

    async def ask():
        async with agent.run_stream("why?") as answer:
            assert used(limits) > 100
            assert await answer.get_output() == "because!"
            return answer.usage

    usage = asyncio.run(ask())
    assert used(limits) == usage.input_tokens + usage.output_tokens < 100


def test_a_cancelled_wait_takes_nothing(budget, until_asleep):
    clock = ManualClock()
    limits, model = budget(requests="1/h burst 1", clock=clock), Model()
    agent = Agent(ShapedModel(model, limits), model_settings=SETTINGS)

    async def ask():
        await agent.run("why?")
        waiting = asyncio.create_task(agent.run("why?"))
        await asyncio.to_thread(until_asleep, clock, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(ask())
    assert model.calls == 1
    assert used(limits) == 30


def test_concurrency_bounds_requests_in_flight_and_any_task_may_release():
    limiter = ShapedConcurrencyLimiter(Policy(concurrency=2))
    running, most = 0, 0

    async def answer(messages, info):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return ModelResponse(parts=[TextPart("because")])

    model = ConcurrencyLimitedModel(FunctionModel(answer), limiter)

    async def ask():
        await asyncio.gather(*(Agent(model).run("why?") for _ in range(20)))

        async def release():
            limiter.release()

        for _ in range(6):
            await limiter.acquire("test")
            await asyncio.create_task(release())

    asyncio.run(ask())
    assert most == 2


def test_a_cancelled_wait_for_a_permit_takes_none():
    limiter = ShapedConcurrencyLimiter(Policy(concurrency=1))

    async def ask():
        await asyncio.create_task(limiter.acquire("first"))
        waiting = asyncio.create_task(limiter.acquire("second"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        limiter.release()
        await asyncio.wait_for(limiter.acquire("third"), 20)

    asyncio.run(ask())


def test_a_limiter_takes_a_policy_with_concurrency():
    with pytest.raises(ConfigError, match="is not a policy with concurrency"):
        ShapedConcurrencyLimiter(Policy("10/s"))


def test_an_argument_that_is_no_budget_is_refused():
    with pytest.raises(ConfigError, match="is not an LLMBudget"):
        ShapedModel(Model(), "500/min")


def test_a_request_is_not_charged_to_one_budget_twice(budget):
    limits, model = budget(), Model()
    shaped = ShapedModel(model, limits)
    for agent in (
        Agent(model, capabilities=[ShapedRequests(limits), ShapedRequests(limits)]),
        Agent(FallbackModel(shaped, model), capabilities=[ShapedRequests(limits)]),
    ):
        with pytest.raises(ConfigError, match="has this budget already: each request would be charged twice"):
            asyncio.run(agent.run("why?"))
    assert model.calls == 0
    asyncio.run(Agent(ShapedModel(shaped, budget()), model_settings=SETTINGS).run("why?"))
    assert used(limits) == 30
