"""A chat model's calls wait for a policy, or for a budget of tokens that is settled by what they used."""

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel

from shapekit import ConfigError, CostExceedsLimitError, LLMBudget, MemoryStore, QueueFullError
from shapekit.integrations import langchain
from shapekit.integrations.langchain import ShapedRateLimiter
from shapekit.testing import FaultyStore

from ...llm.errors import RefusedByServer
from ...llm.frameworks import WaitingIsTold, cancel_the_second
from ...redis_server import shared_server
from .models import TOKENS, Chat, Stream


def model_of(limiter, kind=Chat, **options):
    return kind(rate_limiter=limiter, callbacks=[limiter.handler], **options)


# requests


def test_calls_wait_for_a_policy(do, clock, policy):
    model = Chat(rate_limiter=ShapedRateLimiter(policy("1/s")))
    for _ in range(3):
        do.call(model, "invoke", "why?")
    assert clock.now() == 2


def test_a_call_that_would_wait_too_long_is_refused_and_not_made(do, policy):
    model = Chat(rate_limiter=ShapedRateLimiter(policy("1/s", max_wait=0)), questions=[])
    do.call(model, "invoke", "why?")
    with pytest.raises(QueueFullError):
        do.call(model, "invoke", "why?")
    assert model.questions == ["why?"]


def test_a_non_blocking_call_is_refused_unless_it_may_leave_now(do, clock, policy):
    limiter = ShapedRateLimiter(policy("1/s"))
    assert [do.call(limiter, "acquire", blocking=False) for _ in range(2)] == [True, False]
    assert do.call(limiter, "acquire") is True
    assert clock.now() == 1


def test_a_refusal_by_the_server_holds_all_calls(do, clock, policy):
    limiter = ShapedRateLimiter(policy("10/s"))
    model = model_of(limiter, errors=[RefusedByServer(429, {"Retry-After": "30"})])
    with pytest.raises(RefusedByServer):
        do.call(model, "invoke", "why?")
    do.call(model_of(limiter), "invoke", "why?")
    assert clock.now() >= 30


def test_calls_in_flight_cannot_be_bounded(policy):
    with pytest.raises(ConfigError, match="concurrency="):
        ShapedRateLimiter(policy("1/s", concurrency=2))


def test_an_argument_that_is_no_limit_is_refused():
    with pytest.raises(ConfigError, match="LLMBudget"):
        ShapedRateLimiter("10/s")


# tokens


def test_a_call_is_charged_what_it_used(do, limiter, used):
    assert do.call(model_of(limiter), "invoke", "why?").content == "yes"
    assert used() == TOKENS


def test_a_call_reserves_its_prompt_and_its_longest_answer(do, clock):
    # 100 tokens for the answer leave none for the prompt, and the second call would wait for a minute.
    with closing(LLMBudget(tokens="100/min", clock=clock)) as budget:
        limiter = ShapedRateLimiter(budget)
        with pytest.raises(CostExceedsLimitError):
            do.call(model_of(limiter, max_tokens=100), "invoke", "why?")
        do.call(model_of(limiter, max_tokens=80), "invoke", "why?")


def test_a_stream_is_charged_when_it_has_ended(do, limiter, used):
    assert len(do.stream(model_of(limiter, Stream), "stream", "why?")) == 3
    assert used() == TOKENS


def test_a_stream_of_events_is_charged(limiter, used):
    stream = model_of(limiter, Stream).stream_events("why?", version="v3")
    assert stream.output.text == "yes"
    assert used() == TOKENS


@pytest.mark.filterwarnings("ignore:.*in beta")
def test_a_stream_of_events_is_charged_in_a_loop(limiter, used):
    async def read():
        stream = await model_of(limiter, Stream).astream_events("why?", version="v3")
        return (await stream.output).text

    assert asyncio.run(read()) == "yes"
    assert used() == TOKENS


@pytest.mark.parametrize("kind", [Chat, Stream])
def test_a_batch_is_charged_call_by_call(do, limiter, used, kind):
    model = model_of(limiter, kind)
    do.call(model, "batch", ["a", "b", "c"])
    assert used() == 3 * TOKENS


def test_several_lists_of_messages_are_several_calls(do, limiter, used, clock):
    do.call(model_of(limiter), "generate", [[HumanMessage(text)] for text in "abc"])
    assert used() == 3 * TOKENS
    assert clock.now() == pytest.approx(0.2)


def test_each_of_several_lists_reserves_its_own_estimate(do, limiter, used):
    reserved = []

    class Noting(Chat):
        def _called(self, messages):
            reserved.append(used())

    texts = [5_000 * "a ", "b"]
    do.call(model_of(limiter, Noting, max_tokens=1), "generate", [[HumanMessage(text)] for text in texts])
    assert reserved[0] > 1_000
    assert reserved[1] - reserved[0] < 100


def test_the_refusal_of_one_of_several_lists_gives_back_no_charge_of_another(do, clock):
    limits = {"requests": "1/s burst 1", "tokens": "60k/min", "tokens_per_day": 1000, "max_wait": 0}
    with closing(LLMBudget(**limits, clock=clock)) as it:
        model = model_of(ShapedRateLimiter(it), questions=[])
        with pytest.raises(QueueFullError):
            do.call(model, "generate", [[HumanMessage(text)] for text in "ab"])
        assert model.questions == ["a"]
        assert it.quotas()[0].used >= TOKENS
    langchain._RUNS._open.clear()  # in its synchronous form, LangChain does not report the end of the first


def test_a_cached_answer_takes_nothing(do, limiter, used, clock):
    model = model_of(limiter, cache=InMemoryCache())
    for _ in range(5):
        do.call(model, "invoke", "why?")
    assert (used(), clock.now()) == (TOKENS, 0)
    do.call(model, "invoke", "how?")
    assert used() == 2 * TOKENS


def test_each_retry_is_a_call(do, limiter, used, clock):
    model = model_of(limiter, errors=[ValueError(), ValueError()])
    do.call(model.with_retry(wait_exponential_jitter=False, stop_after_attempt=3), "invoke", "why?")
    assert clock.now() == pytest.approx(0.2)
    assert used() > 200  # the usage of the two that failed is unknown


def test_a_refused_call_costs_no_tokens(do, limiter, used):
    with pytest.raises(RefusedByServer):
        do.call(model_of(limiter, errors=[RefusedByServer(429, {"Retry-After": "1"})]), "invoke", "why?")
    assert used() == 0


def test_a_call_that_waits_too_long_costs_nothing(do, clock):
    with closing(
        LLMBudget(requests="1/s burst 1", tokens="60k/min", tokens_per_day=1000, max_wait=0, clock=clock)
    ) as it:
        limiter = ShapedRateLimiter(it)
        for kind in (Chat, Stream):
            model = model_of(limiter, kind)
            do.stream(model, "stream", "why?")
            with pytest.raises(QueueFullError):
                do.stream(model, "stream", "why?")
            clock.advance(1)
        assert it.quotas()[0].used == 2 * TOKENS


def test_a_call_without_an_estimate_is_refused(do, limiter, used):
    model = Chat(rate_limiter=limiter, questions=[])
    with pytest.raises(ConfigError, match=r"callbacks=\[limiter.handler\]"):
        do.call(model, "invoke", "why?")
    assert (model.questions, used()) == ([], 0)


def test_a_model_in_a_chain_takes_its_handler_from_the_call(do, limiter, used):
    chain = ChatPromptTemplate.from_messages([("user", "{text}")]) | Chat(rate_limiter=limiter)
    do.call(chain, "invoke", {"text": "why?"}, {"callbacks": [limiter.handler]})
    assert used() == TOKENS


def test_two_limiters_count_their_own_calls(do, limiter, used, clock):
    with closing(LLMBudget(tokens="60k/min", tokens_per_day=1000, clock=clock)) as other:
        theirs = ShapedRateLimiter(other)
        both = RunnableParallel(a=Chat(rate_limiter=limiter), b=Chat(rate_limiter=theirs))
        do.call(both, "invoke", "why?", {"callbacks": [limiter.handler, theirs.handler]})
        assert (used(), other.quotas()[0].used) == (TOKENS, TOKENS)


def test_the_estimate_has_the_texts_and_the_bound(clock):
    seen = []

    def estimate(**request):
        seen.append(request)
        return 10

    with closing(LLMBudget(tokens="60k/min", estimate=estimate, clock=clock)) as budget:
        picture = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
        call = {"name": "look", "args": {"at": 1}, "id": "1"}
        model_of(ShapedRateLimiter(budget), max_tokens=33).invoke(
            [SystemMessage("be"), HumanMessage(["see", picture]), AIMessage("", tool_calls=[call])],
            stop=["x"],
        )
    [request], url = seen, "data:image/png;base64,AAAA"  # which counts as a picture
    assert request["max_tokens"] == 33
    assert request["messages"] == [
        {"role": "system", "content": "be"},
        {"role": "human", "content": ["see", {"type": "image_url", "image_url": {"url": url}}]},
        {"role": "ai", "content": "", "tool_calls": [("look", {"at": 1})]},
    ]


# what goes wrong


def test_a_cancelled_wait_gives_its_tokens_back():
    clock = WaitingIsTold()
    limits = {"requests": "1/s burst 1", "tokens": "60k/min", "tokens_per_day": 1000}
    with closing(LLMBudget(**limits, clock=clock)) as budget:
        model = model_of(ShapedRateLimiter(budget))
        cancel_the_second(lambda: model.ainvoke("why?"), clock)
        assert budget.quotas()[0].used == TOKENS


def test_a_cancelled_call_keeps_its_reservation_and_no_messages(limiter, used):
    async def main(message):
        began = asyncio.Event()

        class Slow(Chat):
            async def _agenerate(self, messages, **_):
                began.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(model_of(limiter, Slow).ainvoke([message]))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return weakref.ref(message)

    gone = asyncio.run(main(HumanMessage("why?")))
    gc.collect()
    assert gone() is None
    assert used() > 100
    assert len(langchain._RUNS._open) == 1  # LangChain never reports its end
    langchain._RUNS._open.clear()


def test_the_oldest_runs_without_an_end_are_forgotten(limiter, monkeypatch):
    monkeypatch.setattr("shapekit._adapters.model_calls._MOST_OPEN", 3)
    for number in range(10):
        limiter.handler.on_chat_model_start({}, [[HumanMessage("why?")]], run_id=number)
    assert [number for _, number in langchain._RUNS._open] == [7, 8, 9]
    langchain._RUNS._open.clear()


def test_threads_do_not_mix_up_their_runs(limiter, used):
    model = model_of(limiter)
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(model.invoke, "why?") for _ in range(40)]
    assert [answer.result().content for answer in answers] == 40 * ["yes"]
    assert used() == 40 * TOKENS


@pytest.mark.parametrize("form", ["sync", "asyncio", "sync in a loop"])
def test_a_budget_on_redis_is_settled_when_the_call_returns(form):
    def budget():
        options = {"tokens": "60k/min", "tokens_per_day": 1000, "name": f"langchain {form}"}
        return LLMBudget(store=shared_server().url, **options)

    async def main():
        model = model_of(ShapedRateLimiter(ours))
        if form == "asyncio":
            await model.ainvoke("why?")
        else:
            model.invoke("why?")
        with closing(budget()) as theirs:
            used = theirs.quotas()[0].used
        await ours.aclose()
        return used

    ours = budget()
    if form == "sync":
        with closing(ours), closing(budget()) as theirs:
            model_of(ShapedRateLimiter(ours)).invoke("why?")
            assert theirs.quotas()[0].used == TOKENS
    else:
        assert asyncio.run(main()) == TOKENS


def test_an_answer_is_given_though_the_store_is_gone_when_it_is_settled(do, clock, caplog):
    store = FaultyStore(MemoryStore(clock=clock))

    class Gone(Chat):
        def _called(self, messages):
            store.down = True

    with closing(LLMBudget(tokens="60k/min", store=store, name="some")) as budget:
        assert do.call(model_of(ShapedRateLimiter(budget), Gone), "invoke", "why?").content == "yes"
    assert "keeps what it reserved" in caplog.text
