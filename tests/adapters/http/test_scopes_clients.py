"""Scopes through each client: a route that is known to be of another scope goes on, the held one waits."""

import aiohttp
import anyio
import pytest
import requests

from shapekit import ManualClock

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
def told(server, github):
    """A server on loopback that answers as GitHub does."""

    def answer(arrival):
        said = github(arrival.method, arrival.path)
        return Reply(said.status, said.headers)

    server.answer = answer
    return server


def mock(library, github):
    def answer(request):
        said = github(request.method, request.url.path)
        return library.Response(said.status, headers=said.headers)

    return library.MockTransport(answer)


def test_httpx(both, github, options):
    library, wrapper = both
    transport = wrapper.ShapedTransport(mock(library, github), **options)
    with library.Client(transport=transport) as client:
        passages = [client.get(f"http://api.x{path}").extensions["shapekit"] for path in STORY]
    assert [info.delay for info in passages] == DELAYS
    assert {info.key for info in passages} == {"api.x"}
    assert [seen.at for seen in github.seen] == LEFT


@pytest.mark.anyio
async def test_httpx_as_tasks(both, github, options):
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


def test_a_refusal_through_httpx_is_a_response_of_our_own(both, github, options):
    library, wrapper = both
    transport = wrapper.ShapedTransport(mock(library, github), **options, max_wait="1s", on_reject="respond")
    with library.Client(transport=transport) as client:
        for path in STORY[:4]:
            client.get(f"http://api.x{path}")
        response = client.get("http://api.x/search/a")
        assert client.get("http://api.x/users/a").status_code == 200
    assert (response.status_code, response.headers["Retry-After"]) == (429, "5")
    assert response.json()["key"] == "api.x%scope=search"


def test_requests(told, github, options):
    from shapekit.integrations.requests import shape  # noqa: PLC0415

    with shape(requests.Session(), **options) as session:
        delays = [session.get(told.url + path).shapekit.delay for path in STORY]
    assert delays == DELAYS
    assert [seen.at for seen in github.seen] == LEFT


def test_aiohttp_and_a_total_timeout_that_is_too_short(told, github):
    from shapekit.integrations.aiohttp import TimeoutTooShortError, shaped_middleware  # noqa: PLC0415

    clock = ManualClock()  # nobody waits: with a virtual clock that jumps, aiohttp's own time would not pass
    github.clock = clock

    async def main():
        shaped = shaped_middleware(rate="1_000_000/s", burst=1_000, clock=clock)
        async with aiohttp.ClientSession(middlewares=[shaped]) as session:
            for path in STORY[:5]:
                async with session.get(told.url + path) as response:
                    assert response.status == 200
            with pytest.raises(TimeoutTooShortError) as caught:
                await session.get(f"{told.url}/search/a", timeout=aiohttp.ClientTimeout(total=5))
            assert caught.value.delay == 6
            clock.advance(6)
            async with session.get(f"{told.url}/search/a") as response:
                assert response.status == 200

    anyio.run(main)
    assert [seen.path for seen in github.seen] == [*STORY[:5], "/search/a"]
