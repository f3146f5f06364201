"""HTTP clients: a request is in flight until the body of its answer has ended, whatever ends it."""

import asyncio
import gc
from contextlib import aclosing
from io import BytesIO

import aiohttp
import anyio
import httpx
import httpx2
import pytest
import requests
from requests.adapters import BaseAdapter
from requests.auth import HTTPDigestAuth
from urllib3 import HTTPResponse

from shapekit import Concurrency, Policy, QueueFullError
from shapekit.integrations import aiohttp as shaped_aiohttp
from shapekit.integrations import httpx as shaped_httpx
from shapekit.integrations import httpx2 as shaped_httpx2
from shapekit.integrations import requests as shaped_requests
from shapekit.stores.sqlite import SQLiteStore

from ...crew import in_threads
from .bodies import Bodies
from .rooms import PATIENCE_S, given_back, standing

CALLS = 24
PERMITS = 4


@pytest.fixture
def server():
    server = Bodies(PERMITS, CALLS)
    yield server
    server.close()


@pytest.fixture(params=["memory", "file"])
def policy(request, tmp_path):
    """One permit; a call waits for it at most as long as a test is waited for."""
    store = SQLiteStore(tmp_path / "limits.db") if request.param == "file" else None
    policy = Policy(concurrency=1, name="api", store=store, max_wait=PATIENCE_S)
    yield policy
    policy.close()
    if store is not None:
        store.close()


@pytest.fixture(params=[(httpx, shaped_httpx), (httpx2, shaped_httpx2)], ids=["httpx", "httpx2"])
def both(request):
    return request.param


def is_taken(policy):
    return standing(policy) == (1, 0)


def is_free(policy):
    """Whether there is a permit; the permit of a call that was dropped is given back by another thread."""
    with policy.admit():
        return True


# httpx


def test_httpx_is_in_flight_until_the_body_ends(both, server, policy):
    library, shaped = both
    with library.Client(transport=shaped.ShapedTransport(policy=policy), base_url=server.url) as client:
        with client.stream("GET", "/held") as response:
            assert is_taken(policy)
            parts = response.iter_raw()
            assert next(parts) == b"begin"
            assert is_taken(policy)
            server.let_go()
            assert b"".join(parts) == b"end"
            assert standing(policy) == (0, 0), "it has ended, whether it was closed or not"
        assert client.get("/plain").text == "ok"
        assert client.get("/empty").status_code == 204
        assert client.get("/moved", follow_redirects=True).text == "ok"
        assert standing(policy) == (0, 0)


@pytest.mark.parametrize("how", ["close", "leave the context", "break", "drop"])
def test_httpx_gives_the_permit_back_however_the_body_is_given_up(how, both, server, policy):
    library, shaped = both
    with library.Client(transport=shaped.ShapedTransport(policy=policy), base_url=server.url) as client:
        request = client.build_request("GET", "/broken" if how == "break" else "/held")
        response = client.send(request, stream=True)
        assert is_taken(policy)
        if how == "close":
            response.close()
        elif how == "leave the context":
            with (
                pytest.raises(KeyError),
                client.stream("GET", "/held", extensions={"shapekit": {"skip": True}}),
            ):
                raise KeyError
            response.close()
        elif how == "break":
            with pytest.raises(library.TransportError):
                b"".join(response.iter_raw())
        else:
            del response
            gc.collect()
        assert is_free(policy)
    assert standing(policy) == (0, 0)


def test_httpx_gives_the_permit_back_where_no_answer_comes(both, server, policy):
    library, shaped = both

    def fail(_):
        assert is_taken(policy)
        raise library.ConnectError("no")

    transport = shaped.ShapedTransport(library.MockTransport(fail), policy=policy)
    with library.Client(transport=transport) as client, pytest.raises(library.ConnectError):
        client.get(server.url)
    assert standing(policy) == (0, 0)


def test_httpx_bodies_that_are_read_without_a_client_are_in_flight_until_they_end(both, server, policy):
    library, shaped = both
    with shaped.ShapedTransport(policy=policy) as transport:
        parts = iter(transport.handle_request(library.Request("GET", f"{server.url}/held")).stream)
        assert next(parts) == b"begin"
        assert is_taken(policy)
        server.let_go()
        assert list(parts) == [b"end"]
        assert standing(policy) == (0, 0)


def test_httpx_gives_the_permit_back_where_a_signal_ends_the_reading(both, policy):
    library, shaped = both

    class Interrupted(library.SyncByteStream):
        def __iter__(self):
            yield b"begin"
            raise KeyboardInterrupt

    answering = library.MockTransport(lambda _: library.Response(200, stream=Interrupted()))
    with shaped.ShapedTransport(answering, policy=policy) as transport:
        response = transport.handle_request(library.Request("GET", "http://x"))
        assert is_taken(policy)
        with pytest.raises(KeyboardInterrupt):
            response.read()
        assert standing(policy) == (0, 0)


def test_httpx_answers_that_are_there_already_are_not_in_flight(both, policy):
    library, shaped = both
    transport = shaped.ShapedTransport(
        library.MockTransport(lambda _: library.Response(200, text="ok")), policy=policy
    )
    with library.Client(transport=transport) as client, client.stream("GET", "http://x") as response:
        assert standing(policy) == (0, 0)
        assert response.read() == b"ok"


def test_httpx_refuses_where_there_is_no_permit(both, server):
    library, shaped = both
    transport = shaped.ShapedTransport(concurrency=1, max_wait=0)
    with library.Client(transport=transport, base_url=server.url) as client:
        with client.stream("GET", "/held") as response:
            with pytest.raises(shaped.QueueFullError, match="1 call is in flight") as caught:
                client.get("/plain")
            assert isinstance(caught.value, library.TransportError)
            server.let_go()
            response.read()
        assert client.get("/plain").text == "ok"


@pytest.mark.anyio
async def test_httpx_awaited_is_in_flight_until_the_body_ends(both, server, policy):
    library, shaped = both
    transport = shaped.ShapedTransport(policy=policy)
    async with library.AsyncClient(transport=transport, base_url=server.url) as client:
        async with client.stream("GET", "/held") as response:
            async with aclosing(response.aiter_raw()) as parts:
                assert await anext(parts) == b"begin"
                assert is_taken(policy)
                server.let_go()
                assert [part async for part in parts] == [b"end"]
            assert standing(policy) == (0, 0)
        server.hold()
        response = await client.send(client.build_request("GET", "/held"), stream=True)
        assert is_taken(policy)
        await response.aclose()
        assert standing(policy) == (0, 0)
        with pytest.raises(library.TransportError):
            await client.get("/broken")
        assert standing(policy) == (0, 0)
        with anyio.move_on_after(None) as scope:
            async with client.stream("GET", "/held") as response:
                scope.cancel()
                await response.aread()
        assert standing(policy) == (0, 0), "a cancelled reader gives it back"
        response = await client.send(client.build_request("GET", "/held"), stream=True)
        with anyio.move_on_after(None) as scope:
            scope.cancel()
            await response.aread()
        assert standing(policy) == (0, 0), "also one that closes nothing"
        assert (await client.get("/moved", follow_redirects=True)).text == "ok"
        assert standing(policy) == (0, 0)


def test_httpx_crowds_are_never_more_than_the_permits(both, server):
    library, shaped = both
    with library.Client(
        transport=shaped.ShapedTransport(concurrency=PERMITS), base_url=server.url, timeout=PATIENCE_S
    ) as client:
        in_threads([lambda: client.get("/crowd").raise_for_status()] * CALLS)
    assert (server.most, server.arrived) == (PERMITS, CALLS)


@pytest.mark.anyio
async def test_httpx_crowds_of_tasks_are_never_more_than_the_permits(both, server):
    library, shaped = both
    transport = shaped.ShapedTransport(concurrency=PERMITS)
    async with (
        library.AsyncClient(transport=transport, base_url=server.url, timeout=PATIENCE_S) as client,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(CALLS):
            tasks.start_soon(client.get, "/crowd")
    assert (server.most, server.arrived) == (PERMITS, CALLS)


# requests


def test_requests_is_in_flight_until_the_body_ends(server, policy):
    with shaped_requests.shape(requests.Session(), policy=policy) as session:
        response = session.get(f"{server.url}/held", stream=True)
        assert is_taken(policy)
        server.let_go()
        assert response.content == b"beginend"
        assert standing(policy) == (0, 0)
        assert session.get(f"{server.url}/plain").text == "ok"
        assert session.get(f"{server.url}/empty").status_code == 204
        assert session.get(f"{server.url}/moved").text == "ok"
        assert session.get(f"{server.url}/plain", auth=HTTPDigestAuth("me", "it")).text == "ok"
        assert standing(policy) == (0, 0)


@pytest.mark.parametrize(
    "how", ["close", "leave the context", "read raw", "close raw", "close raw alone", "break", "drop"]
)
def test_requests_gives_the_permit_back_however_the_body_is_given_up(how, server, policy):
    with shaped_requests.shape(requests.Session(), policy=policy) as session:
        response = session.get(f"{server.url}/{'broken' if how == 'break' else 'held'}", stream=True)
        assert is_taken(policy)
        if how == "close":
            response.close()
        elif how == "leave the context":
            with pytest.raises(KeyError), response:
                raise KeyError
        elif how == "read raw":
            server.let_go()
            assert response.raw.read() == b"beginend"
        elif how == "close raw":
            response.raw.close()
        elif how == "close raw alone":
            raw = response.raw
            del response
            gc.collect()
            assert is_taken(policy)
            raw.close()
        elif how == "break":
            with pytest.raises(requests.RequestException):
                response.content  # noqa: B018 - reads it
            response.close()
        else:
            del response
            gc.collect()
        if how not in ("close raw alone", "drop"):
            assert standing(policy) == (0, 0)
        assert is_free(policy)


def test_requests_is_in_flight_for_each_of_two_adapters_until_the_body_ends(server):
    inner, outer = policies = Policy(concurrency=1), Policy(concurrency=1)
    adapter = shaped_requests.ShapedAdapter(shaped_requests.ShapedAdapter(policy=inner), policy=outer)
    with requests.Session() as session:
        session.mount("http://", adapter)
        response = session.get(f"{server.url}/held", stream=True)
        given_back()
        assert [*map(standing, policies)] == [(1, 0), (1, 0)]
        server.let_go()
        assert response.content == b"beginend"
        assert [*map(standing, policies)] == [(0, 0), (0, 0)]


class Here(BaseAdapter):
    """An adapter that has its bodies already, as mocks, files and caches do."""

    def __init__(self, raw):
        super().__init__()
        self.raw = raw

    def send(self, request, **_):
        response = requests.Response()
        response.status_code, response.request, response.url = 200, request, request.url
        response.raw = self.raw(BytesIO(b"ok"))
        return response

    def close(self):
        pass


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("raw", [lambda body: HTTPResponse(body, preload_content=False), lambda body: body])
def test_requests_has_nothing_in_flight_without_a_connection(policy, stream, raw):
    with requests.Session() as session:
        session.mount("mem://", shaped_requests.ShapedAdapter(Here(raw), policy=policy))
        response = session.get("mem://here/", stream=stream)
        assert response.content == b"ok"
        assert is_free(policy)


def test_requests_crowds_are_never_more_than_the_permits(server):
    with shaped_requests.shape(requests.Session(), concurrency=PERMITS) as session:
        in_threads([lambda: session.get(f"{server.url}/crowd").raise_for_status()] * CALLS)
    assert (server.most, server.arrived) == (PERMITS, CALLS)


def test_requests_refuses_where_there_is_no_permit(server):
    with shaped_requests.shape(requests.Session(), concurrency=1, max_wait=0) as session:
        response = session.get(f"{server.url}/held", stream=True)
        with pytest.raises(shaped_requests.QueueFullError, match="1 call is in flight"):
            session.get(f"{server.url}/plain")
        response.close()
        assert session.get(f"{server.url}/plain").text == "ok"


# aiohttp


def on_asyncio(work):
    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


async def until_free(policy):
    async with policy.aadmit():
        pass


def test_aiohttp_is_in_flight_until_the_body_ends(server, policy):
    async def work():
        middleware = shaped_aiohttp.shaped_middleware(policy=policy)
        async with aiohttp.ClientSession(server.url, middlewares=[middleware]) as session:
            async with session.get("/held") as response:
                assert await response.content.readany() == b"begin"
                assert is_taken(policy)
                server.let_go()
                assert await response.read() == b"end"
                await until_free(policy)
            for path, status in (("/plain", 200), ("/empty", 204), ("/moved", 200)):
                async with session.get(path) as response:
                    assert response.status == status
                await until_free(policy)
        assert standing(policy) == (0, 0)

    on_asyncio(work)


@pytest.mark.parametrize(
    "how", ["close", "release", "leave the context", "break", "drop", "close the session"]
)
def test_aiohttp_gives_the_permit_back_however_the_body_is_given_up(how, server, policy):
    async def work():
        middleware = shaped_aiohttp.shaped_middleware(policy=policy)
        async with aiohttp.ClientSession(server.url, middlewares=[middleware]) as session:
            response = await session.get("/broken" if how == "break" else "/held")
            if how == "close":
                response.close()
            elif how == "release":
                response.release()
            elif how == "leave the context":
                with pytest.raises(KeyError):
                    async with response:
                        raise KeyError
            elif how == "break":
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
            else:
                # Its connection keeps a response that is referenced no more, until the body ends or it does.
                del response
                gc.collect()
                assert is_taken(policy)
                if how == "drop":
                    server.let_go()
                else:
                    await session.close()
                    gc.collect()
            await until_free(policy)

    on_asyncio(work)


def test_aiohttp_in_one_process_gives_it_back_before_its_reader_goes_on(server):
    async def work():
        middleware = shaped_aiohttp.shaped_middleware(concurrency=1, max_wait=0)
        async with aiohttp.ClientSession(server.url, middlewares=[middleware]) as session:
            for _ in range(20):
                async with session.get("/plain") as response:
                    assert await response.text() == "ok"
            response = await session.get("/held")
            with pytest.raises(shaped_aiohttp.QueueFullError, match="1 call is in flight"):
                await session.get("/plain")
            response.close()
            async with session.get("/plain") as response:
                assert await response.text() == "ok"

    on_asyncio(work)


def test_aiohttp_crowds_are_never_more_than_the_permits(server):
    async def work():
        middleware = shaped_aiohttp.shaped_middleware(concurrency=PERMITS)

        async def call(session):
            async with session.get("/crowd") as response:
                await response.read()

        async with aiohttp.ClientSession(server.url, middlewares=[middleware]) as session:
            await asyncio.gather(*(call(session) for _ in range(CALLS)))

    on_asyncio(work)
    assert (server.most, server.arrived) == (PERMITS, CALLS)


def test_a_route_may_have_permits_of_its_own(server):
    transport = shaped_httpx.ShapedTransport(
        rate="1000/s", routes={f"{server.url}/held": Policy(concurrency=Concurrency(1), max_wait=0)}
    )
    with httpx.Client(transport=transport, base_url=server.url) as client, client.stream("GET", "/held"):
        assert client.get("/plain").text == "ok"
        with pytest.raises(QueueFullError):
            client.get("/held")
