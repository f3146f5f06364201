"""Once a call was made, whatever shapekit does afterwards never replaces its answer or its error.

Each way to make a call is tried with each ending while the store fails at its first operation, at its second,
and so on, until no further operation could fail. A call that was not made raises an error of its library.
"""

import inspect

import aiohttp
import anyio
import httpx
import httpx2
import pytest
import requests
import tenacity
from requests.adapters import BaseAdapter

from shapekit import (
    Adaptive,
    MemoryStore,
    Policy,
    ResilientStore,
    SQLiteStore,
    StoreUnavailableError,
    shaped,
)
from shapekit.integrations import httpx as shaped_httpx
from shapekit.integrations import httpx2 as shaped_httpx2
from shapekit.integrations.aiohttp import shaped_middleware
from shapekit.integrations.requests import ShapedAdapter
from shapekit.integrations.tenacity import ashaped_retrying, shaped_retrying
from shapekit.testing import FaultyStore

from .server import Reply, Server


class Failing(FaultyStore):
    """Fails at one of its operations, at that one alone or from there on, before it is done or after."""

    def __init__(self, at, error, *, lasts, is_done):
        super().__init__(MemoryStore())
        self.at, self.error, self.lasts, self.is_done = at, error, lasts, is_done

    def _fail(self):
        if self.calls == self.at or (self.lasts and self.calls > self.at):
            raise self.error

    def _check_up(self):
        if not self.is_done:
            self._fail()

    async def _answered(self, driver, call, *args):
        answer = await super()._answered(driver, call, *args)
        if self.is_done:
            self._fail()
        return answer


class Mistake(RuntimeError):
    """The error of a custom store, or of a function of the user's."""


GONE = StoreUnavailableError("gone")
FAULTS = [
    *((GONE, lasts, is_done) for lasts in (False, True) for is_done in (False, True)),
    (Mistake("in a store"), True, False),
]


class Call:
    """The user's function: whether it ran, and how it ends, which is the same each time."""

    def __init__(self, ending, server):
        self.ending, self.url = ending, server.url
        server.answer = lambda _: ending
        self.was_made = False

    def __call__(self, *_, **__):
        self.was_made = True
        if isinstance(self.ending, Exception):
            raise self.ending
        return self.ending

    async def later(self, *_, **__):
        return self()


# the ways to make a call: each returns what it gave


def by_admit(policy, call):
    with policy.admit():
        return call()


async def by_aadmit(policy, call):
    async with policy.aadmit():
        return call()


def by_shaped(policy, call):
    return shaped(policy=policy)(call)()


async def by_shaped_coroutine(policy, call):
    @shaped(policy=policy)
    async def function():
        return call()

    return await function()


def by_shaped_generator(policy, call):
    @shaped(policy=policy)
    def function():
        yield call()

    (result,) = function()
    return result


async def by_shaped_async_generator(policy, call):
    @shaped(policy=policy)
    async def function():
        yield call()

    (result,) = [item async for item in function()]
    return result


ONCE = tenacity.stop_after_attempt(1)


def by_tenacity(policy, call):
    return shaped_retrying(policy, stop=ONCE)(call)


async def by_tenacity_on_a_loop(policy, call):
    return await ashaped_retrying(policy, stop=ONCE)(call.later)


def by_httpx(policy, call, library=httpx, module=shaped_httpx):
    transport = module.ShapedTransport(library.MockTransport(call), policy=policy)
    with library.Client(transport=transport) as client:
        return client.get("http://server/")


async def by_httpx_on_a_loop(policy, call, library=httpx, module=shaped_httpx):
    transport = module.ShapedTransport(library.MockTransport(call.later), policy=policy)
    async with library.AsyncClient(transport=transport) as client:
        return await client.get("http://server/")


def by_httpx2(policy, call):
    return by_httpx(policy, call, httpx2, shaped_httpx2)


async def by_httpx2_on_a_loop(policy, call):
    return await by_httpx_on_a_loop(policy, call, httpx2, shaped_httpx2)


class Wire(BaseAdapter):
    """The server behind the adapter of requests."""

    def __init__(self, call):
        super().__init__()
        self.send = call

    def close(self):
        pass


def by_requests(policy, call):
    with requests.Session() as session:
        session.mount("http://", ShapedAdapter(Wire(call), policy=policy))
        return session.get("http://server/")


async def by_aiohttp(policy, call):
    async def behind(request, handler):
        call()
        return await handler(request)

    through = [shaped_middleware(policy=policy), behind]
    async with aiohttp.ClientSession(middlewares=through) as session, session.get(call.url) as response:
        assert (response.status, await response.read()) == (call.ending.status, call.ending.body)
    return call.ending


FUNCTIONS = [
    *(by_admit, by_aadmit, by_shaped, by_shaped_coroutine, by_shaped_generator, by_shaped_async_generator),
    *(by_tenacity, by_tenacity_on_a_loop),
]
CLIENTS = {
    by_httpx: httpx,
    by_httpx_on_a_loop: httpx,
    by_httpx2: httpx2,
    by_httpx2_on_a_loop: httpx2,
    by_requests: requests,
    by_aiohttp: aiohttp,
}


ROOTS = {
    httpx: httpx.TransportError,
    httpx2: httpx2.TransportError,
    requests: requests.RequestException,
    aiohttp: aiohttp.ClientError,
}


def answered(library, status):
    if library is not requests:
        return library.Response(status, headers={"Retry-After": "7"}, content=b"whole")
    response = requests.Response()
    response.status_code, response._content = status, b"whole"
    response.headers["Retry-After"] = "7"
    response.raw = None
    return response


def endings(way):
    library = CLIENTS.get(way)
    if library is None:
        return ["an answer", ConnectionError("the user's own")]
    if library is aiohttp:
        return [Reply(200), Reply(429), aiohttp.ClientConnectionError("the user's own")]
    kind = library.ConnectionError if library is requests else library.ConnectError
    return [answered(library, 200), answered(library, 429), kind("the user's own")]


LIMITS = {
    "rate": {"rate": "1000/s"},
    "concurrency": {"rate": "1000/s", "concurrency": 1},
    "adaptive": {"adaptive": Adaptive(min="1/s", max="1000/s")},
}


def outcome(way, runner, policy, call):
    """The outcome of a way: what it returned, or what it raised."""
    try:
        if runner is None:
            return way(policy, call)
        return anyio.run(way, policy, call, backend=runner)
    except Exception as error:
        return error


def runners(way):
    if not inspect.iscoroutinefunction(way):
        return [None]
    return ["asyncio"] if way is by_aiohttp else ["asyncio", "trio"]


WAYS = [(way, runner) for way in (*FUNCTIONS, *CLIENTS) for runner in runners(way)]


@pytest.fixture(scope="module")
def server():
    """One client for all: only parts of the tests pass through it."""
    server = Server().start()
    yield server
    server.close()


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(("way", "runner"), WAYS)
def test_a_store_that_fails_replaces_nothing(server, way, runner, limits):
    for error, lasts, is_done in FAULTS:
        for ending in endings(way):
            were_made = []
            for at in range(1, 100):
                store = Failing(at, error, lasts=lasts, is_done=is_done)
                check(server, way, runner, store, limits, ending, were_made)
                if store.calls < at:
                    break
            assert True in were_made
            assert False in were_made, "the first operation lets the call leave"


@pytest.mark.parametrize("mode", ["raise", "open", "closed", "local"])
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize(("way", "runner"), WAYS)
def test_a_store_that_is_gone_and_replaced_by_a_fallback_replaces_nothing(server, way, runner, limits, mode):
    share = 1 / 2 if mode == "local" else None
    for ending in endings(way):
        were_made = []
        for at in range(1, 100):
            inner = Failing(at, GONE, lasts=True, is_done=False)
            store = ResilientStore(inner, on_outage=mode, share=share)
            check(server, way, runner, store, limits, ending, were_made)
            store.close()
            if inner.calls < at:
                break
        assert True in were_made


def check(server, way, runner, store, limits, ending, were_made):
    policy = Policy(**LIMITS[limits], name="p", store=store, max_wait=0, refund_on=Exception)
    call = Call(ending, server)
    result = outcome(way, runner, policy, call)
    were_made.append(call.was_made)
    if not call.was_made:
        assert isinstance(result, Exception)
        if not isinstance(result, Mistake) and (library := CLIENTS.get(way)) is not None:
            assert isinstance(result, ROOTS[library])
    elif isinstance(ending, Exception):
        assert result is ending
        assert ending.__context__ is None or not isinstance(
            ending.__context__, (StoreUnavailableError, Mistake)
        )
    else:
        assert result is ending


# functions of the user's that run after the call


def mistaken(*_):
    raise Mistake("in a function of the user's")


@pytest.mark.parametrize(("way", "runner"), WAYS)
def test_a_function_of_the_users_that_fails_afterwards_replaces_nothing(server, way, runner, caplog):
    for ending in endings(way):
        policy = Policy("1000/s", concurrency=1, refund_on=mistaken, feedback=mistaken)
        call = Call(ending, server)
        caplog.clear()
        assert outcome(way, runner, policy, call) is ending
        if isinstance(ending, Exception) or way in CLIENTS:
            (record,) = caplog.records
            assert (record.name, record.levelname) == ("shapekit.policy", "ERROR")
            assert record.exc_info[0] is Mistake
        assert outcome(way, runner, policy, call) is ending, "and the permit is free again"


# a task that is cancelled by then


@pytest.mark.parametrize("runner", ["asyncio", "trio"])
def test_the_error_of_a_cancelled_task_comes_through_and_its_cost_comes_back(tmp_path, runner):
    store = SQLiteStore(tmp_path / "limits.db")
    policy = Policy(quota="10/day", concurrency=1, name="p", store=store, refund_on=ConnectionError)
    own = ConnectionError("the user's own")

    async def cancelled():
        with anyio.CancelScope() as scope:
            async with policy.aadmit():
                scope.cancel()
                raise own

    async def work():
        with pytest.raises(ConnectionError) as caught:
            await cancelled()
        assert caught.value is own
        (day,) = await policy.aquotas()
        assert day.used == 0
        async with policy.aadmit(max_wait=0):
            pass  # the permit is free
        await store.aclose()

    anyio.run(work, backend=runner)
