"""Three processes with one budget, before a server that counts requests and tokens strictly."""

import anyio
import pytest
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.llms.callbacks import llm_completion_callback

from shapekit import MemoryStore
from shapekit.integrations.llama_index import ShapedRateLimiter

from ...llm.fleet import WORKERS, budget, run_fleet, run_on_a_clock, used
from ...llm.provider import RETRY_AFTER_S, Provider
from .conftest import all_done
from .fakes import Answering

CALM_S = 9
"""Until then nothing but the limits refuses anything."""
SECONDS = CALM_S + RETRY_AFTER_S + 1
UNDER_WAY_S = 0.3
"""What had left by the time that a refusal was read may still arrive."""


@pytest.fixture(scope="module")
def seen():
    with Provider() as provider:
        provider.refuses_after_s = CALM_S
        fleet = run_fleet("tests.heavy.llama_index.worker", "shaped", provider, SECONDS)
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
    class Model(Answering):
        @llm_completion_callback()
        async def acomplete(self, prompt, formatted=False, **kwargs):
            raw = {"usage": {"prompt_tokens": len(prompt) // 3, "completion_tokens": kwargs["max_tokens"]}}
            return CompletionResponse(text="yes", raw=raw)

    def worker():
        model = Model(rate_limiter=ShapedRateLimiter(budget(store)))
        return lambda question, most: model.acomplete(question, max_tokens=most)

    store = MemoryStore(clock=clock)
    left = anyio.run(run_on_a_clock, [worker() for _ in range(WORKERS)], clock, 20)
    all_done()
    share, fullest = used(left, 20)
    assert share >= 0.95
    assert fullest <= 1
