"""aiohttp: each request that is sent counts, and no other."""

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import ClientSession, DigestAuthMiddleware, web
from aiohttp.test_utils import TestServer

from shapekit import ManualClock, Policy
from shapekit.integrations.aiohttp import request_options, shaped_middleware

from ...adapters.http.server import Reply

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def unused_url():
    """The URL of a port without a listener."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield f"http://{HOST}:{taken.getsockname()[1]}"


async def fetch(session, url, **options):
    async with session.get(url, **options) as response:
        return response.status, await response.read()


async def test_redirects_count(server, clock, left):
    def answer(arrival):
        left.append(clock.now())
        return Reply(302, {"Location": "/there"}) if arrival.path == "/here" else Reply()

    server.answer = answer
    async with ClientSession(middlewares=[shaped_middleware(rate="1/s", clock=clock)]) as session:
        assert (await fetch(session, f"{server.url}/here"))[0] == 200
    assert left == [0.0, 1.0]


@pytest.mark.filterwarnings("ignore:.*BasicAuth:DeprecationWarning")
async def test_both_steps_of_a_digest_authentication_count_when_listed_last(server, clock, left):
    def answer(arrival):
        left.append(clock.now())
        if "authorization" in arrival.headers:
            return Reply()
        return Reply(401, {"WWW-Authenticate": 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'})

    server.answer = answer
    digest = DigestAuthMiddleware("user", "secret")
    async with ClientSession(middlewares=[digest, shaped_middleware(rate="1/s", clock=clock)]) as session:
        assert (await fetch(session, server.url))[0] == 200
    assert left == [0.0, 1.0]


async def test_requests_that_another_middleware_repeats_count(server, clock, left):
    async def three_times(request, handler):
        for _ in range(2):
            (await handler(request)).release()
        return await handler(request)

    middlewares = [three_times, shaped_middleware(rate="1/s", clock=clock)]
    async with ClientSession(middlewares=middlewares) as session:
        await fetch(session, server.url)
    assert left == [0.0, 1.0, 2.0]


async def test_a_request_that_is_cancelled_while_it_waits_was_never_made(server):
    clock = ManualClock()
    connector = aiohttp.TCPConnector(limit=1)
    middlewares = [shaped_middleware(rate="1/s", clock=clock)]
    async with ClientSession(connector=connector, middlewares=middlewares) as session:
        await fetch(session, server.url)
        waiting = asyncio.create_task(fetch(session, f"{server.url}/cancelled"))
        await clock.aadvance(0.5)
        with request_options(skip=True):
            # The only connection is free.
            await fetch(session, server.url)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        following = asyncio.create_task(fetch(session, server.url))
        await clock.aadvance(0.5)
        assert await following == (200, b"ok")
    assert [arrival.path for arrival in server.arrivals] == ["/"] * 3
    assert len({arrival.peer for arrival in server.arrivals}) == 1


async def test_a_failed_connection_counts_unless_refund_on_excludes_it(unused_url):
    for refund_on, delay in ((None, 1.0), (aiohttp.ClientConnectorError, 0.0)):
        clock = ManualClock()
        policy = Policy("1/s", clock=clock, refund_on=refund_on)
        async with ClientSession(middlewares=[shaped_middleware(policy=policy)]) as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(unused_url)
        assert policy.forecast().first_in == delay


async def test_a_session_may_be_closed_while_requests_wait(server):
    clock = ManualClock()
    policy = Policy("1/s", clock=clock)
    session = ClientSession(middlewares=[shaped_middleware(policy=policy)])
    await fetch(session, server.url)
    waiting = asyncio.create_task(fetch(session, server.url))
    await clock.aadvance(0.5)
    await session.close()
    await clock.aadvance(0.5)
    with pytest.raises(aiohttp.ClientConnectionError, match="closed"):
        await waiting
    assert len(server.arrivals) == 1
    assert policy.forecast().first_in == 0.0


async def test_a_websocket_takes_a_slot_and_keeps_its_permit_until_it_is_closed(clock):
    async def listen(request):
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        async for _ in websocket:
            pass
        return websocket

    app = web.Application()
    app.router.add_get("/", listen)
    policy = Policy("1/min", burst=2, concurrency=1, clock=clock)
    shaped = shaped_middleware(policy=policy)
    async with TestServer(app) as site, ClientSession(middlewares=[shaped]) as session:
        async with session.ws_connect(site.make_url("/")):
            with pytest.raises(TimeoutError):
                async with policy.aadmit(timeout=5):
                    pass
        for opened_at in (5.0, 60.0):
            async with session.ws_connect(site.make_url("/")) as websocket:
                await websocket.send_str("is no request")
                assert clock.now() == opened_at
