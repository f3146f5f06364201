"""An agent's calls of its model wait for a budget, and are settled by what they used."""

import asyncio
from contextlib import closing

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool

from shapekit import ConfigError, LLMBudget, QueueFullError
from shapekit.integrations.langchain import shaped_middleware

from ...llm.errors import RefusedByServer
from .models import TOKENS, USED, Chat

ASK = {"messages": [{"role": "user", "content": "why?"}]}


@tool
def look(where: str) -> str:
    """Look at what is there."""
    return where


class Looking(Chat):
    """Looks once, and then answers."""

    def _generate(self, messages, *args, **kwargs):
        answer = super()._generate(messages, *args, **kwargs)
        if len(messages) == 1:
            call = {"name": "look", "args": {"where": "here"}, "id": "1"}
            answer.generations[0].message = AIMessage("", tool_calls=[call], usage_metadata=USED)
        return answer


def test_each_call_of_the_model_is_charged_what_it_used(do, budget, used, clock):
    agent = create_agent(Looking(), [look], middleware=[shaped_middleware(budget)])
    answer = do.call(agent, "invoke", ASK)
    assert [message.type for message in answer["messages"]] == ["human", "ai", "tool", "ai"]
    assert used() == 2 * TOKENS
    assert clock.now() == pytest.approx(0.1)


def test_an_agent_may_have_several_limits_but_each_only_once(do, budget, used, policy, clock):
    limits = [shaped_middleware(policy("1/s", name="account")), shaped_middleware(budget)]
    agent = create_agent(Looking(), [look], middleware=limits)
    do.call(agent, "invoke", ASK)
    assert (used(), clock.now()) == (2 * TOKENS, 1)
    with pytest.raises(AssertionError, match="duplicate middleware"):
        create_agent(Chat(), middleware=2 * limits)


def test_each_attempt_of_a_retry_waits(do, budget, used, clock):
    model = Chat(errors=[RefusedByServer(429, {"Retry-After": "30"})])
    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False)
    agent = create_agent(model, middleware=[retry, shaped_middleware(budget)])
    assert do.call(agent, "invoke", ASK)["messages"][-1].content == "yes"
    assert clock.now() >= 30
    assert used() == TOKENS


def test_a_call_that_would_wait_too_long_is_refused(do, clock):
    with closing(LLMBudget(requests="1/s burst 1", tokens="60k/min", max_wait=0, clock=clock)) as budget:
        agent = create_agent(Chat(), middleware=[shaped_middleware(budget)])
        do.call(agent, "invoke", ASK)
        with pytest.raises(QueueFullError):
            do.call(agent, "invoke", ASK)


def test_a_policy_bounds_the_calls_in_flight(policy):
    most = running = 0
    both = None

    class Counting(Chat):
        async def _agenerate(self, *args, **kwargs):
            nonlocal most, running
            running += 1
            most = max(most, running)
            if running == 2:
                both.set()
            await both.wait()
            running -= 1
            return self._generate(*args, **kwargs)

    async def main():
        nonlocal both
        both = asyncio.Event()
        limit = policy("1000/s", concurrency=2)
        agent = create_agent(Counting(), middleware=[shaped_middleware(limit)])
        await asyncio.gather(*(agent.ainvoke(ASK) for _ in range(6)))

    asyncio.run(main())
    assert most == 2


def test_the_estimate_has_the_system_prompt_the_tools_and_the_bound(clock):
    seen = []

    def estimate(**request):
        seen.append(request)
        return 10

    with closing(LLMBudget(tokens="60k/min", estimate=estimate, clock=clock)) as budget:
        middleware = [shaped_middleware(budget)]
        agent = create_agent(Chat(max_tokens=33), [look], system_prompt="be", middleware=middleware)
        picture = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
        agent.invoke({"messages": [HumanMessage(["see", picture])]})
    [request] = seen
    assert request["max_tokens"] == 33
    assert request["messages"] == [
        {"role": "system", "content": "be"},
        {"role": "human", "content": ["see", {"type": "image", "data": "AAAA", "mime_type": "image/png"}]},
    ]
    [tool] = request["tools"]
    assert (tool["name"], tool["description"]) == ("look", "Look at what is there.")
    assert tool["parameters"]["where"]["type"] == "string"


def test_an_argument_that_is_no_limit_is_refused():
    with pytest.raises(ConfigError, match="LLMBudget"):
        shaped_middleware("10/s")
