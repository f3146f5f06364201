"""A call that would wait for a call which it is a part of warns, or raises where it would wait for ever."""

import asyncio
import contextlib
import os
import threading
import time

import aiohttp
import anyio
import anyio.to_thread
import httpx
import httpx2
import pytest
import requests

from shapekit import ConfigError, MemoryStore, Policy, QueueFullError, RedisStore, SQLiteStore, shaped
from shapekit.integrations import httpx as shaped_httpx
from shapekit.integrations import httpx2 as shaped_httpx2
from shapekit.integrations.aiohttp import shaped_middleware
from shapekit.integrations.requests import shape
from shapekit.testing import FaultyStore

from ...redis_server import shared_server
from .bodies import Bodies
from .rooms import PATIENCE_S, standing

ENDLESS = "would wait for ever"
PERHAPS = "waits for ever, unless others end them"
SOON = 0.01


@pytest.fixture
def policy():
    return Policy(concurrency=1)


@pytest.fixture(params=[(httpx, shaped_httpx), (httpx2, shaped_httpx2)], ids=["httpx", "httpx2"])
def both(request):
    """A client library, and its wrapper."""
    return request.param


@pytest.fixture
def server():
    server = Bodies(1, 1)
    yield server
    server.close()


@pytest.fixture(params=["memory", "awaited", "sqlite", "redis"])
def store(request, tmp_path):
    made = {
        "memory": MemoryStore,
        "awaited": lambda: FaultyStore(MemoryStore()),
        "sqlite": lambda: SQLiteStore(tmp_path / "limits.db"),
        "redis": lambda: RedisStore.from_url(shared_server().url, prefix=tmp_path.name),
    }[request.param]()
    yield made
    made.close()


# certain: functions


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_function_that_calls_itself_raises(store, concurrency):
    policy, depths = Policy(concurrency=concurrency, name="p", store=store), []

    @shaped(policy=policy)
    def call(depth):
        depths.append(depth)
        return call(depth + 1)

    with pytest.raises(ConfigError, match=ENDLESS) as caught:
        call(1)
    assert caught.value.field == "concurrency"
    assert depths == list(range(1, concurrency + 1))
    assert standing(policy) == (0, 0)


@pytest.mark.parametrize("runner", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", ["memory", "awaited"])
def test_a_coroutine_function_that_calls_another_raises(runner, kind):
    store = MemoryStore() if kind == "memory" else FaultyStore(MemoryStore())
    policy = Policy(concurrency=1, name="p", store=store)

    @shaped(policy=policy)
    async def inner():
        raise AssertionError("it cannot leave")

    @shaped(policy=policy)
    async def outer():
        await inner()

    with pytest.raises(ConfigError, match=ENDLESS):
        anyio.run(outer, backend=runner)
    assert standing(policy) == (0, 0)


@pytest.mark.parametrize("runner", ["asyncio", "trio"])
def test_a_function_that_runs_a_loop_with_a_nested_call_raises(policy, runner):
    @shaped(policy=policy)
    async def inner():
        raise AssertionError("it cannot leave")

    @shaped(policy=policy)
    def outer():
        anyio.run(inner, backend=runner)

    with pytest.raises(ConfigError, match=ENDLESS):
        outer()
    assert standing(policy) == (0, 0)


@pytest.mark.parametrize("waits", [{"max_wait": 0}, {"max_wait": SOON}, {"timeout": SOON}])
def test_nested_calls_with_a_bound_end_as_before(policy, waits):
    with policy.admit(), pytest.raises((QueueFullError, TimeoutError)):
        policy.admit(**waits).__enter__()


def test_calls_of_other_keys_policies_and_stores_do_not_count():
    policies = [Policy(concurrency=1, name=name) for name in ("a", "a", "b")]
    with contextlib.ExitStack() as stack:
        for policy in policies:
            for key in ("x", "y"):
                stack.enter_context(policy.admit(key))


def test_calls_that_are_over_do_not_count(policy):
    for _ in range(200):
        with policy.admit():
            pass
    first = policy.admit().__enter__()
    first.leave()
    with policy.admit():
        pass


def in_child(work):
    """Runs `work` in a forked child; returns its id, and the pipe for the text that `work` returns."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, work().encode())
        finally:
            os._exit(0)
    os.close(write)
    return child, read


def test_a_forked_child_waits_for_its_parents_calls_and_raises_for_its_own(tmp_path):
    policy = Policy(concurrency=1, name="p", store=SQLiteStore(tmp_path / "limits.db"))

    @shaped(policy=policy)
    def fork(work):
        child = in_child(work)
        gives_up = time.monotonic() + PATIENCE_S
        while standing(policy) != (1, 1):
            assert time.monotonic() < gives_up
        return child

    def nested():
        @shaped(policy=policy)
        def outer():
            with pytest.raises(ConfigError, match=ENDLESS):
                fork(str)
            return "admitted, and told"

        return outer()

    child, read = fork(nested)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"admitted, and told"
    os.close(read)
    policy.shaper.core.store.close()


# possible: another thread or task may end the outer call


def test_a_block_in_a_block_warns(policy):
    with policy.admit(), pytest.raises(RuntimeWarning, match=PERHAPS):
        policy.admit().__enter__()
    assert standing(policy) == (0, 0)


def test_a_call_that_another_thread_ends_is_waited_for(policy):
    first = policy.admit().__enter__()

    def leave_when_awaited():
        deadline = time.monotonic() + PATIENCE_S
        while standing(policy) != (1, 1) and time.monotonic() < deadline:
            time.sleep(0.001)
        first.leave()

    ending = threading.Thread(target=leave_when_awaited)
    ending.start()
    with pytest.warns(RuntimeWarning, match=PERHAPS) as warned, policy.admit():
        assert standing(policy) == (1, 0)
    ending.join()
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize("runner", ["asyncio", "trio"])
def test_children_of_a_task_with_the_permit_warn_and_go_on_when_it_ends(policy, runner):
    visits = []

    async def child():
        async with policy.aadmit():
            visits.append(1)

    async def work():
        async with anyio.create_task_group() as group, policy.aadmit():
            group.start_soon(child)
            group.start_soon(child)
            with anyio.fail_after(PATIENCE_S):
                while standing(policy) != (1, 2):
                    await anyio.lowlevel.checkpoint()
            assert not visits

    with pytest.warns(RuntimeWarning, match=PERHAPS):
        anyio.run(work, backend=runner)
    assert len(visits) == 2


@pytest.mark.parametrize("runner", ["asyncio", "trio"])
def test_tasks_beside_each_other_do_not_warn(policy, runner):
    async def sibling():
        for _ in range(3):
            async with policy.aadmit():
                await anyio.lowlevel.checkpoint()

    async def work():
        async with policy.aadmit():
            pass
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(sibling)

    anyio.run(work, backend=runner)


def test_threads_beside_each_other_do_not_warn(policy):
    caught = []

    def work():
        try:
            for _ in range(20):
                with policy.admit():
                    pass
        except RuntimeWarning as warning:
            caught.append(warning)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not caught


def test_a_thread_that_works_for_a_task_with_the_permit_warns(policy):
    def inner():
        with policy.admit():
            raise AssertionError("it cannot leave")

    async def work():
        async with policy.aadmit():
            await anyio.to_thread.run_sync(inner)

    with pytest.raises(RuntimeWarning, match=PERHAPS):
        anyio.run(work)


# clients: a response that is still open


def test_httpx_with_an_open_stream_warns(both, server):
    library, wrapper = both
    with library.Client(transport=wrapper.ShapedTransport(concurrency=1)) as client:
        url = f"{server.url}/plain"
        with client.stream("GET", url), pytest.raises(RuntimeWarning, match="close the response"):
            client.get(url)
        assert client.get(url).status_code == 200


@pytest.mark.parametrize("runner", ["asyncio", "trio"])
def test_httpx_awaited_with_an_open_stream_warns(both, server, runner):
    library, wrapper = both

    async def work():
        async with library.AsyncClient(transport=wrapper.ShapedTransport(concurrency=1)) as client:
            url = f"{server.url}/plain"
            async with client.stream("GET", url):
                with pytest.raises(RuntimeWarning, match="close the response"):
                    await client.get(url)
            assert (await client.get(url)).status_code == 200

    anyio.run(work, backend=runner)


def test_requests_with_an_open_stream_warns(server):
    with shape(requests.Session(), concurrency=1) as session:
        url = f"{server.url}/plain"
        with session.get(url, stream=True), pytest.raises(RuntimeWarning, match="close the response"):
            session.get(url)
        assert session.get(url).status_code == 200


def test_aiohttp_with_an_open_response_warns(server):
    server.hold()

    async def work():
        endless = {"middlewares": [shaped_middleware(concurrency=1)], "timeout": aiohttp.ClientTimeout()}
        url = f"{server.url}/held"
        async with aiohttp.ClientSession(**endless) as session, session.get(url):
            with pytest.raises(RuntimeWarning, match="close the response"):
                await session.get(url)
            server.let_go()

    asyncio.run(work())
