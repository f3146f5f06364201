"""Scopes through each client: a route of another known scope goes on, and the held one waits."""

import aiohttp
import anyio
import pytest
import requests

from shapekit import AsyncAlarm, ManualClock, Policy, QueueFullError

from ...queue.scopes.scoped_servers import GitHub
from .server import Reply

STORY = ("/users/a", "/search/a", "/search/a", "/search/a", "/users/a", "/search/a", "/users/b")
DELAYS = [0, 0, 0, 0, 0, 6, 0]
LEFT = [0, 0, 0, 0, 0, 6, 6]


@pytest.fixture
def github(clock):
    return GitHub(clock)


@pytest.fixture
def options(clock):
    return {"rate": "1_000_000/s", "burst": 1_000, "clock": clock}


@pytest.fixture
def server_with_scopes(server, github):
    """A server on loopback that answers as GitHub does."""

    def answer(arrival):
        reply = github(arrival.method, arrival.path)
        return Reply(reply.status, reply.headers)

    server.answer = answer
    return server


def mock(library, github):
    def answer(request):
        reply = github(request.method, request.url.path)
        return library.Response(reply.status, headers=reply.headers)

    return library.MockTransport(answer)


def slow(library, github, clock):
    """Each answer takes a tenth of a second: meanwhile other calls begin to wait."""

    async def answer(request):
        await clock.asleep(0.1, AsyncAlarm())
        return library.Response(200, headers=github(request.method, request.url.path).headers)

    return library.MockTransport(answer)


SLOW_LEFT = [0.1, 0.6, 1.1, 6.1, 6.6]


def test_httpx_obeys_scopes(both, github, options):
    library, wrapper = both
    transport = wrapper.ShapedTransport(mock(library, github), **options)
    with library.Client(transport=transport) as client:
        passages = [client.get(f"http://api.x{path}").extensions["shapekit"] for path in STORY]
    assert [info.delay for info in passages] == DELAYS
    assert {info.key for info in passages} == {"api.x"}
    assert [seen.at for seen in github.seen] == LEFT


@pytest.mark.anyio
async def test_httpx_tasks_obey_scopes(both, github, options):
    library, wrapper = both
    transport = wrapper.ShapedTransport(mock(library, github), **options)
    async with library.AsyncClient(transport=transport) as client:
        for path in STORY[:4]:
            await client.get(f"http://api.x{path}")
        async with anyio.create_task_group() as tasks:
            for path in STORY[4:]:
                tasks.start_soon(client.get, f"http://api.x{path}")
    assert sorted((seen.at, seen.path) for seen in github.seen[4:]) == [
        (0, "/users/a"),
        (0, "/users/b"),
        (6, "/search/a"),
    ]


BESIDE = [({}, {}), ({}, {"shapekit": {"cost": 1}}), ({"concurrency": 10}, {})]


@pytest.mark.anyio
@pytest.mark.parametrize(("more", "extensions"), BESIDE, ids=["plain", "of its own", "with permits"])
async def test_tasks_that_waited_before_the_first_answer_obey_the_scope_that_it_names(
    both, github, clock, more, extensions
):
    library, wrapper = both
    transport = wrapper.ShapedTransport(slow(library, github, clock), rate="2/s", clock=clock, **more)
    delays = []

    async def get():
        response = await client.get("http://api.x/search/a", extensions=extensions)
        delays.append(response.extensions["shapekit"].delay)

    async with library.AsyncClient(transport=transport) as client, anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(get)
    assert [(seen.at, seen.status) for seen in github.seen] == [(at, 200) for at in SLOW_LEFT]
    assert delays == [0, 0.5, 1, 6, 6.5]


def test_threads_that_waited_before_the_first_answer_obey_the_scope_that_it_names(both, crew, until_asleep):
    library, wrapper = both
    github = GitHub(clock := ManualClock(), search=1)
    policy = Policy("2/s", clock=clock)
    policy.shaper.reserve(policy.key)
    with library.Client(transport=wrapper.ShapedTransport(mock(library, github), policy=policy)) as client:
        for _ in range(3):
            crew.start(client.get, "http://api.x/search/a")
        until_asleep(clock, 3)
        clock.advance(13)
        crew.join()
    assert [(seen.at, seen.status) for seen in github.seen] == [(0.5, 200), (6, 200), (12, 200)]


@pytest.mark.anyio
async def test_a_call_that_would_then_wait_too_long_is_refused(both, github, clock):
    library, wrapper = both
    transport = wrapper.ShapedTransport(slow(library, github, clock), rate="2/s", clock=clock, max_wait="5s")
    refused = []

    async def get():
        try:
            await client.get("http://api.x/search/a")
        except QueueFullError as error:
            refused.append((error.delay, error.max_wait))

    async with library.AsyncClient(transport=transport) as client, anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(get)
    assert [seen.at for seen in github.seen] == SLOW_LEFT[:3]
    assert refused == [(6, 5), (6, 5)]


def test_a_refusal_through_httpx_may_be_a_429_of_ours(both, github, options):
    library, wrapper = both
    transport = wrapper.ShapedTransport(mock(library, github), **options, max_wait="1s", on_reject="respond")
    with library.Client(transport=transport) as client:
        for path in STORY[:4]:
            client.get(f"http://api.x{path}")
        response = client.get("http://api.x/search/a")
        assert client.get("http://api.x/users/a").status_code == 200
    assert (response.status_code, response.headers["Retry-After"]) == (429, "5")
    assert response.json()["key"] == "api.x%scope=search"


def test_requests_obeys_scopes(server_with_scopes, github, options):
    from shapekit.integrations.requests import shape  # noqa: PLC0415

    with shape(requests.Session(), **options) as session:
        delays = [session.get(server_with_scopes.url + path).shapekit.delay for path in STORY]
    assert delays == DELAYS
    assert [seen.at for seen in github.seen] == LEFT


def test_aiohttp_obeys_scopes_and_a_total_timeout(server_with_scopes, github):
    from shapekit.integrations.aiohttp import TimeoutTooShortError, shaped_middleware  # noqa: PLC0415

    clock = ManualClock()  # no call waits: with a virtual clock that jumps, aiohttp's own time would not pass
    github.clock = clock

    async def main():
        shaped = shaped_middleware(rate="1_000_000/s", burst=1_000, clock=clock)
        async with aiohttp.ClientSession(middlewares=[shaped]) as session:
            for path in STORY[:5]:
                async with session.get(server_with_scopes.url + path) as response:
                    assert response.status == 200
            with pytest.raises(TimeoutTooShortError) as caught:
                await session.get(
                    f"{server_with_scopes.url}/search/a", timeout=aiohttp.ClientTimeout(total=5)
                )
            assert caught.value.delay == 6
            clock.advance(6)
            async with session.get(f"{server_with_scopes.url}/search/a") as response:
                assert response.status == 200

    anyio.run(main)
    assert [seen.path for seen in github.seen] == [*STORY[:5], "/search/a"]
