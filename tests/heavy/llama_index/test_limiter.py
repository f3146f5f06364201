"""Models and embeddings wait for a policy, or for a budget of tokens that is settled by what they used."""

import asyncio
import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.storage.kvstore import SimpleKVStore

from shapekit import ConfigError, CostExceedsLimitError, LLMBudget, MemoryStore, QueueFullError
from shapekit.integrations import llama_index
from shapekit.integrations.llama_index import ShapedRateLimiter
from shapekit.testing import FaultyStore

from ...llm.errors import RefusedByServer
from ...llm.frameworks import WaitingIsTold, cancel_the_second
from ...redis_server import shared_server
from .conftest import all_done
from .fakes import TOKENS, Answering, Custom, Vectors

ROOT = Path(__file__).parents[3]
ASK = [ChatMessage("why?")]
CALLS = [("chat", ASK), ("complete", "why?")]
STREAMS = [("stream_chat", ASK), ("stream_complete", "why?")]
UNREAD = 100
"""The tokens that are reserved for an answer."""


# requests


@pytest.mark.parametrize("call", CALLS)
def test_calls_wait_for_a_policy(do, clock, policy, call):
    model = Answering(rate_limiter=ShapedRateLimiter(policy("1/s")))
    for _ in range(3):
        do.call(model, *call)
    assert clock.now() == 2


def test_a_call_that_would_wait_too_long_is_refused_and_not_made(do, policy):
    model = Answering(rate_limiter=ShapedRateLimiter(policy("1/s", max_wait=0)))
    do.call(model, "chat", ASK)
    with pytest.raises(QueueFullError):
        do.call(model, "chat", ASK)
    assert model.calls == [ASK]


def test_calls_in_flight_cannot_be_bounded(policy):
    with pytest.raises(ConfigError, match="concurrency="):
        ShapedRateLimiter(policy("1/s", concurrency=2))


def test_an_argument_that_is_no_limit_is_refused():
    with pytest.raises(ConfigError, match="LLMBudget"):
        ShapedRateLimiter("10/s")


@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_by_the_server_holds_all_calls(do, clock, policy, call):
    limiter = ShapedRateLimiter(policy("10/s"))
    with pytest.raises(RefusedByServer):
        do.call(Answering(rate_limiter=limiter, errors=[RefusedByServer(429, {"Retry-After": "30"})]), *call)
    all_done()
    do.call(Answering(rate_limiter=limiter), *call)
    assert clock.now() >= 30


# tokens


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_charged_what_it_used(do, limiter, used, call):
    do.call(Answering(rate_limiter=limiter), *call)
    assert used() == TOKENS


@pytest.mark.parametrize("call", CALLS)
def test_a_call_reserves_its_prompt_and_its_longest_answer(do, clock, call):
    with closing(LLMBudget(tokens="100/min", clock=clock)) as budget:
        limiter = ShapedRateLimiter(budget)
        with pytest.raises(CostExceedsLimitError):
            do.call(Answering(rate_limiter=limiter), *call)
        do.call(Answering(rate_limiter=limiter, max_tokens=80), *call)
    with closing(LLMBudget(tokens="100/min", clock=clock)) as budget, pytest.raises(CostExceedsLimitError):
        do.call(Answering(rate_limiter=ShapedRateLimiter(budget), max_tokens=1), *call, max_tokens=100)


@pytest.mark.parametrize("call", STREAMS)
def test_a_stream_is_charged_when_it_has_ended(do, limiter, used, call):
    assert len(do.stream(Answering(rate_limiter=limiter), *call)) == 2
    assert used() == TOKENS


def test_a_method_that_returns_the_stream_of_another_leaves_no_run_behind(do, limiter, used):
    assert do.stream(Answering(rate_limiter=limiter), "stream", PromptTemplate("why?")) == ["ye", "s"]
    assert used() == TOKENS
    assert llama_index._RUNS._open == {}


@pytest.mark.parametrize("call", [*CALLS, *STREAMS])
def test_a_refused_call_costs_no_tokens(do, limiter, used, call):
    model = Answering(rate_limiter=limiter, errors=[RefusedByServer(429, {"Retry-After": "1"})])
    with pytest.raises(RefusedByServer):
        (do.stream if call in STREAMS else do.call)(model, *call)
    assert used() == 0


def test_a_call_that_waits_too_long_costs_nothing(do, clock):
    options = {"requests": "1/s", "tokens": "60k/min", "tokens_per_day": 1000, "max_wait": 0}
    with closing(LLMBudget(**options, clock=clock)) as budget:
        model = Answering(rate_limiter=ShapedRateLimiter(budget))
        model.chat(ASK)
        with pytest.raises(QueueFullError):
            do.call(model, "chat", ASK)
        assert budget.quotas()[0].used == TOKENS


def test_a_chat_that_is_answered_by_a_completion_is_one_call(do, limiter, used, clock):
    model = Custom(rate_limiter=limiter)
    do.call(model, "chat", ASK)
    assert (used(), clock.now()) == (TOKENS, 0)
    do.call(model, "complete", "why?")
    list(model.stream_chat(ASK))
    assert (used(), clock.now()) == (3 * TOKENS, pytest.approx(0.2))


def test_calls_at_once_are_charged_one_by_one(limiter, used):
    async def main():
        model = Answering(rate_limiter=limiter)
        await asyncio.gather(*(model.achat(ASK) for _ in range(20)))

    asyncio.run(main())
    assert used() == 20 * TOKENS


def test_threads_do_not_mix_up_their_runs(limiter, used):
    model = Answering(rate_limiter=limiter)
    with ThreadPoolExecutor(8) as threads:
        for answer in [threads.submit(model.chat, ASK) for _ in range(40)]:
            answer.result()
    assert used() == 40 * TOKENS


def test_the_estimate_has_the_texts_and_the_bound(clock):
    seen = []

    def estimate(**request):
        seen.append(request)
        return 10

    with closing(LLMBudget(tokens="60k/min", estimate=estimate, clock=clock)) as budget:
        model = Answering(rate_limiter=ShapedRateLimiter(budget), max_tokens=33)
        blocks = [TextBlock(text="see"), ImageBlock(image=b"AAAA")]
        model.chat([ChatMessage("be", role="system"), ChatMessage(blocks=blocks)])
        model.complete("why?", max_tokens=44)
    assert [(request["max_tokens"], request["prompt"]) for request in seen] == [(33, None), (44, "why?")]
    assert seen[0]["messages"] == [
        {"role": "system", "content": ["be"]},
        {"role": "user", "content": ["see", {"data": ""}]},
    ]


def test_tokens_may_be_acquired_outside_of_models(limiter, used):
    limiter.acquire(50)
    asyncio.run(limiter.async_acquire(20))
    assert used() == 70
    with pytest.raises(ConfigError, match="pass a number of tokens"):
        limiter.acquire()


# embeddings


@pytest.mark.parametrize("name", ["get_text_embedding", "get_query_embedding"])
def test_the_length_of_a_text_is_charged(do, limiter, used, name):
    model = Vectors(rate_limiter=limiter)
    assert do.call(model, name, "abc" * 10) == [30.0]
    assert used() == 10


def test_each_batch_is_a_call(do, limiter, used, clock):
    model = Vectors(rate_limiter=limiter, embed_batch_size=2)
    texts = ["abc" * 10, "abc" * 20, "abc" * 30, "abc" * 40, "abc"]
    assert len(do.call(model, "get_text_embedding_batch", texts)) == 5
    assert used() == 31 + 71 + 1  # two texts of a batch are never one
    assert clock.now() == pytest.approx(0.2)


def test_each_batch_of_several_workers_is_a_call(limiter, used, clock):
    model = Vectors(rate_limiter=limiter, embed_batch_size=2, num_workers=2)
    texts = ["abc" * 10, "abc" * 20, "abc" * 30, "abc" * 40, "abc"]
    assert len(asyncio.run(model.aget_text_embedding_batch(texts))) == 5
    assert used() == 31 + 71 + 1
    assert clock.now() == pytest.approx(0.2)


def test_a_cached_embedding_takes_nothing(do, limiter, used):
    model = Vectors(rate_limiter=limiter, embeddings_cache=SimpleKVStore({"x": {"a": {}}}))
    for _ in range(3):
        do.call(model, "get_text_embedding", "abc" * 10)
    assert used() == 10


def test_a_refused_batch_costs_no_tokens_and_those_before_it_do(limiter, used):
    model = Vectors(rate_limiter=limiter, embed_batch_size=1)
    model.errors = Nth(2, RefusedByServer(429, {"Retry-After": "1"}))
    with pytest.raises(RefusedByServer):
        model.get_text_embedding_batch(["abc" * 10, "abc" * 20, "abc" * 30])
    assert used() == 10


def test_a_batch_that_waits_too_long_costs_no_tokens_and_those_before_it_do(do, clock):
    limits = {"requests": "1/s burst 1", "tokens": "60k/min", "tokens_per_day": 1000, "max_wait": 0}
    with closing(LLMBudget(**limits, clock=clock)) as budget:
        model = Vectors(rate_limiter=ShapedRateLimiter(budget), embed_batch_size=1)
        with pytest.raises(QueueFullError):
            do.call(model, "get_text_embedding_batch", ["abc" * 10, "abc" * 20])
        all_done()
        assert budget.quotas()[0].used == 10


class Nth:
    """Errors, of which the nth is the only one."""

    def __init__(self, number, error):
        self.left, self.error = number, error

    def __bool__(self):
        self.left -= 1
        return self.left == 0

    def pop(self, _):
        return self.error


# what goes wrong


def test_a_cancelled_wait_gives_its_tokens_back():
    clock = WaitingIsTold()
    options = {"requests": "1/s", "tokens": "60k/min", "tokens_per_day": 1000}
    with closing(LLMBudget(**options, clock=clock)) as budget:
        model = Answering(rate_limiter=ShapedRateLimiter(budget))
        cancel_the_second(lambda: model.achat(ASK), clock)
        all_done()
        assert budget.quotas()[0].used == TOKENS


def test_a_cancelled_call_keeps_its_reservation(limiter, used):
    async def main():
        model = Answering(rate_limiter=limiter)
        task = asyncio.create_task(model.achat(ASK))
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert model.calls == []

    asyncio.run(main())
    assert used() > UNREAD


def test_a_stream_that_is_never_read_keeps_its_reservation(limiter, used):
    stream = Answering(rate_limiter=limiter).stream_chat(ASK)
    del stream
    gc.collect()
    assert used() > UNREAD
    llama_index._RUNS._open.clear()  # LlamaIndex never reports its end


def test_a_budget_on_redis_is_settled_before_the_program_ends():
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.heavy.llama_index.fakes import Answering
from shapekit import LLMBudget
from shapekit.integrations.llama_index import ShapedRateLimiter
from llama_index.core.llms import ChatMessage

async def main():
    options = {{"tokens": "60k/min", "tokens_per_day": 1000, "name": "llama"}}
    budget = LLMBudget(store={shared_server().url!r}, **options)
    await Answering(rate_limiter=ShapedRateLimiter(budget)).achat([ChatMessage("why?")])

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    options = {"tokens": "60k/min", "tokens_per_day": 1000, "name": "llama"}
    with closing(LLMBudget(store=shared_server().url, **options)) as budget:
        assert budget.quotas()[0].used == TOKENS


def test_an_answer_is_given_though_the_store_is_gone_when_it_is_settled(do, clock, caplog):
    store = FaultyStore(MemoryStore(clock=clock))

    class Gone(Answering):
        def _called(self, request):
            store.down = True

    with closing(LLMBudget(tokens="60k/min", store=store, name="some")) as budget:
        assert do.call(Gone(rate_limiter=ShapedRateLimiter(budget)), "chat", ASK).message.content == "yes"
        all_done()
    assert "keeps what it reserved" in caplog.text
