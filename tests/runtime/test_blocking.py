"""The warning about a synchronous wait on an event loop: the line it names, its text, how often it comes."""

import asyncio
import importlib
import inspect
import warnings
from contextlib import ExitStack

import anyio
import httpx
import pytest
import requests

from shapekit import GCRA, LLMBudget, ManualClock, Policy, Shaper, shaped
from shapekit._runtime import drivers
from shapekit._runtime.drivers import warn_in_event_loop
from shapekit.integrations.httpx import ShapedTransport
from shapekit.integrations.requests import ShapedAdapter
from shapekit.integrations.tenacity import shaped_retrying

from ..queue.slow_store import SlowStore


def with_admit(policy):
    with policy.admit():
        pass


def with_a_stack(policy):
    with ExitStack() as stack:
        stack.enter_context(policy.admit())


def with_shaper(policy):
    with policy.shaper:
        pass


def scheduled(policy):
    policy.shaper.schedule()


def decorated(policy):
    @shaped(policy=policy)
    def call():
        return None

    call()


def generated(policy):
    @shaped(policy=policy)
    def call():
        yield 1

    list(call())


def by_httpx(policy):
    inner = httpx.MockTransport(lambda request: httpx.Response(200))
    with httpx.Client(transport=ShapedTransport(inner, policy=policy)) as client:
        client.get("http://here/")


class Adapter(requests.adapters.BaseAdapter):
    def send(self, request, **options):
        response = requests.Response()
        response.status_code, response.request, response.url = 200, request, request.url
        return response

    def close(self):
        pass


def by_requests(policy):
    session = requests.Session()
    session.mount("http://", ShapedAdapter(Adapter(), policy=policy))
    session.get("http://here/")


def by_tenacity(policy):
    shaped_retrying(policy)(lambda: None)


WAYS = {
    with_admit: "async with policy.aadmit()",
    with_a_stack: "async with policy.aadmit()",
    with_shaper: "async with shaper",
    scheduled: "await shaper.aschedule()",
    decorated: "async def for the @shaped function",
    generated: "async def for the @shaped generator",
    by_httpx: "httpx.AsyncClient",
    by_requests: "httpx.AsyncClient or aiohttp",
    by_tenacity: "ashaped_retrying",
}


def warnings_on_a_loop(action, *, backend="asyncio", how="always"):
    """The warnings of a call on a loop."""

    async def main():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(how)
            action()
        return caught

    return anyio.run(main, backend=backend)


@pytest.fixture
def policy():
    """The first call waits."""
    made = Policy("1/s", clock=ManualClock(autojump=True))
    made.shaper.reserve()
    return made


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("way", "awaited"), WAYS.items(), ids=lambda way: getattr(way, "__name__", ""))
def test_the_warning_names_the_line_of_the_user_and_the_replacement(way, awaited, backend, policy):
    [warning] = warnings_on_a_loop(lambda: way(policy), backend=backend)
    lines, first = inspect.getsourcelines(way)
    assert warning.category is RuntimeWarning
    assert warning.filename == __file__
    assert first < warning.lineno < first + len(lines)
    assert str(warning.message) == (
        f"a synchronous wait blocks the event loop that runs on this thread; use {awaited} instead"
    )


def test_a_budget_of_tokens_warns_too():
    budget = LLMBudget(tokens="60/min", clock=ManualClock(autojump=True))

    def ask():
        for _ in range(2):
            with budget.admit(60):
                pass

    # A call that waits in a queue sleeps more than once.
    [warning] = warnings_on_a_loop(ask, how="default")
    assert "use async with budget.aadmit() instead" in str(warning.message)
    assert warning.filename == __file__


def test_the_warning_is_shown_once_for_each_line(policy):
    def calls():
        for _ in range(3):
            policy.shaper.schedule()
        policy.shaper.schedule()

    first, second = warnings_on_a_loop(calls, how="default")
    assert second.lineno == first.lineno + 1


def test_the_warning_as_an_error_gives_the_slot_back(policy):
    async def main():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                with pytest.raises(RuntimeWarning):
                    policy.shaper.schedule()

    asyncio.run(main())
    assert policy.shaper.reserve().delay == 1.0


def test_a_wait_outside_a_loop_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_in_event_loop()


def test_a_call_that_leaves_at_once_does_not_warn():
    shaper = Shaper(gates=(GCRA("10/s"),))
    assert warnings_on_a_loop(shaper.schedule) == []


def test_the_replacements_in_the_warning_exist():
    places = {
        "Admission": "policy",
        "Shaper": "shaper",
        "LLMCall": "llm.call",
        "Transport": "_adapters.transport",
        "ShapedAdapter": "integrations.requests",
        "_ShapedRetrying": "integrations.tenacity",
        "wait_slot": "integrations.tenacity",
        "_plain": "decorator",
        "_generator": "decorator",
        "wrapped": "llm.wrap",
    }
    for name in drivers._AWAITED:
        owner, _, method = name.partition(".")
        found = getattr(importlib.import_module(f"shapekit.{places[owner]}"), owner)
        assert method.startswith("<locals>") or callable(getattr(found, method))


NOTEBOOK = {"__name__": "IPython.core.interactiveshell"}
exec("async def run_cell(cell): cell()", NOTEBOOK)


def test_a_cell_of_a_notebook_may_wait(policy):
    """IPython awaits each cell on the loop of its kernel, where nothing else of the user's runs meanwhile."""

    async def wait():
        policy.shaper.schedule()

    def start():
        with pytest.raises(StopIteration):
            wait().send(None)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(NOTEBOOK["run_cell"](lambda: with_admit(policy)))
        assert caught == []
        asyncio.run(NOTEBOOK["run_cell"](start))
    # A coroutine that a cell starts is not the cell.
    assert len(caught) == 1


def test_a_slow_answer_to_a_call_that_leaves_now_is_no_wait(clock):
    async def main():
        Shaper("10/s", store=SlowStore(clock, 0.03), name="far").schedule()

    asyncio.run(main())
