"""Three processes with one budget, before a server that counts requests and tokens strictly."""

import anyio
import pytest
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from shapekit import MemoryStore
from shapekit.integrations.langchain import ShapedRateLimiter

from ...llm.fleet import QUESTION, WORKERS, budget, run_fleet, run_on_a_clock, used
from ...llm.provider import RETRY_AFTER_S, Provider
from .models import Chat

CALM_S = 9
"""Until then nothing but the limits refuses anything."""
SECONDS = CALM_S + RETRY_AFTER_S + 1
UNDER_WAY_S = 0.3
"""What had left by the time that a refusal was read may still arrive."""


@pytest.fixture(scope="module")
def seen():
    with Provider() as provider:
        provider.refuses_after_s = CALM_S
        fleet = run_fleet("tests.heavy.langchain.worker", "shaped", provider, SECONDS)
    return provider, fleet


def test_no_call_is_refused_for_its_requests_or_tokens(seen):
    provider, fleet = seen
    assert len(provider.refusals) == fleet.failed == 1  # the one that the server was told to refuse
    assert fleet.answered == len(provider.arrivals) - 1


def test_most_of_the_limit_is_used(seen):
    provider, _ = seen
    # On a busy machine calls leave late, and then all others later, too.
    assert 0.7 <= provider.share(1, CALM_S) <= 1


def test_a_refusal_of_one_process_stops_all_for_as_long_as_the_server_says(seen):
    provider, _ = seen
    [refusal] = provider.refusals
    later = [arrival.at - refusal.at for arrival in provider.arrivals if arrival.at > refusal.at]
    assert [at for at in later if UNDER_WAY_S < at < RETRY_AFTER_S] == []
    assert len([at for at in later if at >= RETRY_AFTER_S]) > 10


def test_by_the_clock_nearly_all_of_the_limit_is_used_and_never_more(clock):
    class Model(Chat):
        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            answer = AIMessage("yes", usage_metadata=usage(kwargs["max_tokens"]))
            return ChatResult(generations=[ChatGeneration(message=answer)])

    def usage(most):
        read = len(QUESTION) // 3
        return {"input_tokens": read, "output_tokens": most, "total_tokens": read + most}

    def worker():
        limiter = ShapedRateLimiter(budget(store))
        model = Model(rate_limiter=limiter, callbacks=[limiter.handler])
        return lambda question, most: model.ainvoke(question, max_tokens=most)

    store = MemoryStore(clock=clock)
    left = anyio.run(run_on_a_clock, [worker() for _ in range(WORKERS)], clock, 20)
    share, fullest = used(left, 20)
    assert share >= 0.95
    assert fullest <= 1
