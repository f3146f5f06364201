"""aiohttp: a request leaves in its slot, and the middleware changes nothing else about it."""

import asyncio
import pickle
import subprocess
import sys

import aiohttp
import pytest
from aiohttp import ClientSession, web

from shapekit import (
    ConfigError,
    ManualClock,
    MemoryStore,
    Policy,
    RateLimitedError,
    ShapekitError,
    StoreUnavailableError,
    off,
)
from shapekit.integrations import aiohttp as ours
from shapekit.integrations.aiohttp import request_options, shaped_middleware

from ...adapters.http.server import PATIENCE_S, Reply

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


async def fetch(session, url, **options):
    async with session.get(url, **options) as response:
        return response.status, await response.read()


def keys(store):
    """The slots that were used, all of the policy "api"."""
    names, found = zip(*(key.split(":", 1) for key in [*store.keys()]), strict=True)
    assert set(names) == {"api"}
    return set(found)


async def test_requests_leave_on_the_grid_and_arrive_as_they_were(server, clock, left):
    async with ClientSession(middlewares=[shaped_middleware(rate="2/s", clock=clock)]) as session:
        for _ in range(4):
            assert await fetch(session, server.url, headers={"X-One": "1"}) == (200, b"ok")
    assert left == [0.0, 0.5, 1.0, 1.5]
    assert {arrival.headers["x-one"] for arrival in server.arrivals} == {"1"}


async def test_requests_leave_in_the_order_of_their_calls(server):
    left = []

    async def noting(request, handler):
        left.append(request.url.path)
        return await handler(request)

    # A request that has left may still be overtaken on the way to a connection.
    middlewares = [shaped_middleware(rate="100/s"), noting]
    async with ClientSession(middlewares=middlewares) as session:
        await asyncio.gather(*(fetch(session, f"{server.url}/{number}") for number in range(12)))
    assert left == [f"/{number}" for number in range(12)]


async def test_the_very_same_request_and_response_pass(server, clock):
    requests, responses = [], []

    async def noting(request, handler):
        requests.append((request, dict(vars(request))))
        response = await handler(request)
        responses.append((response, dict(vars(response))))
        return response

    middlewares = [noting, shaped_middleware(rate="1/s", clock=clock), noting]
    async with ClientSession(middlewares=middlewares) as session, session.get(server.url):
        for before, after in (requests, responses):
            assert before[0] is after[0]
            assert before[1] == after[1]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("host", {"127.0.0.1"}),
        ("host+method", {"127.0.0.1 GET"}),
        ("origin", {"http://127.0.0.1:{port}"}),
        ("{host}/{path[0]}", {"127.0.0.1/v1", "127.0.0.1/v 2"}),
        (lambda request: request.headers["X-Tenant"], {"one"}),
    ],
)
async def test_keys(server, store, key, expected):
    middleware = shaped_middleware(rate="1/s", key=key, store=store, name="api")
    async with ClientSession(middlewares=[middleware], headers={"X-Tenant": "one"}) as session:
        await fetch(session, f"{server.url}/v1/users?q=1")
        await fetch(session, f"{server.url}/v%202/users")
    assert keys(store) == {text.replace("{port}", str(server.port)) for text in expected}


async def test_each_host_has_its_own_slots(server, clock, left):
    async with ClientSession(middlewares=[shaped_middleware(rate="1/s", clock=clock)]) as session:
        for host in (HOST, "LOCALHOST", "localhost"):
            await fetch(session, server.url.replace(HOST, host))
    assert left == [0.0, 0.0, 1.0]


async def test_a_host_in_other_letters_is_its_ascii_form(store):
    async def stop(request, handler):
        raise aiohttp.ClientConnectionError

    middlewares = [shaped_middleware(rate="1/s", store=store, name="api"), stop]
    async with ClientSession(middlewares=middlewares) as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get("http://BÜCHER.example/")
    assert keys(store) == {"xn--bcher-kva.example"}


async def test_routes_have_their_own_rates(server, clock, left):
    middleware = shaped_middleware(rate="1/s", routes={f"{server.url}/search": "1/min"}, clock=clock)
    async with ClientSession(middlewares=[middleware]) as session:
        for path in ("/search", "/search/users", "/other", "/other"):
            await fetch(session, server.url + path)
    assert left == [0.0, 60.0, 60.0, 61.0]


async def test_requests_without_a_route_are_not_shaped_where_there_is_no_rate(server, clock, left):
    middleware = shaped_middleware(routes={f"{server.url}/search": "1/min"}, clock=clock)
    async with ClientSession(middlewares=[middleware]) as session:
        for path in ("/other", "/other", "/search", "/other"):
            await fetch(session, server.url + path)
    assert left == [0.0, 0.0, 0.0, 0.0]


async def test_single_requests_may_have_options(server, store, clock, left):
    middleware = shaped_middleware(rate="1/s", burst=5, store=store, name="api")
    async with ClientSession(middlewares=[middleware]) as session:
        with request_options(cost=5):
            await fetch(session, server.url)
        with request_options(skip=True):
            await fetch(session, server.url)
        with request_options(key="tenant"):
            with request_options(cost=5):
                await fetch(session, server.url)
            with request_options(max_wait=0.5), pytest.raises(RateLimitedError, match="tenant"):
                await fetch(session, server.url)
        with request_options(max_wait=0.5), pytest.raises(RateLimitedError):
            await fetch(session, server.url)
        assert keys(store) == {HOST, "tenant"}
        await fetch(session, server.url)
    assert left == [0.0, 0.0, 0.0, 1.0]


async def test_options_that_cannot_work_are_refused(server):
    async with ClientSession(middlewares=[shaped_middleware(rate="1/s")]) as session:
        for options in ({"nonsense": 1}, {"cost": 0}, {"key": 1}, {"max_wait": -1}, {"skip": "no"}):
            with (
                request_options(**options),
                pytest.raises(ConfigError, match=f"shapekit.{next(iter(options))}"),
            ):
                await fetch(session, server.url)
    assert server.arrivals == []


async def test_options_of_one_task_are_not_those_of_another(server, clock, left):
    skipped, done = asyncio.Event(), asyncio.Event()

    async def skipping():
        with request_options(skip=True):
            skipped.set()
            await done.wait()
            await fetch(session, server.url)

    async with ClientSession(middlewares=[shaped_middleware(rate="1/s", clock=clock)]) as session:
        await fetch(session, server.url)
        other = asyncio.create_task(skipping())
        await skipped.wait()
        await fetch(session, server.url)
        done.set()
        await other
    assert left == [0.0, 1.0, 1.0]


async def test_the_middleware_may_be_passed_to_one_request(server, clock, left):
    middleware = shaped_middleware(rate="1/s", clock=clock)
    async with ClientSession() as session:
        for _ in range(2):
            await fetch(session, server.url, middlewares=[middleware])
        await fetch(session, server.url)
    assert left == [0.0, 1.0, 1.0]


async def test_a_refusal_holds_all_callers_of_the_key_and_of_no_other(server):
    clock, left = ManualClock(), []

    def answer(arrival):
        left.append((clock.now(), arrival.path))
        return Reply(429, {"Retry-After": "2"}) if arrival.path == "/held/0" else Reply()

    server.answer = answer
    middleware = shaped_middleware(rate="10/s", key="{path[0]}", clock=clock)
    async with ClientSession(middlewares=[middleware]) as session:
        held = [asyncio.create_task(fetch(session, f"{server.url}/held/{number}")) for number in range(4)]
        assert (await held[0])[0] == 429
        await clock.aadvance(1.999999)
        await fetch(session, f"{server.url}/free")
        for task, seconds in zip(held[1:], (0.100001, 0.1, 0.1), strict=True):
            assert not task.done()
            await clock.aadvance(seconds)
            await asyncio.wait_for(task, PATIENCE_S)
    paths = ["/held/0", "/free", "/held/1", "/held/2", "/held/3"]
    assert left == [*zip((0.0, 1.999999, 2.1, 2.2, 2.3), paths, strict=True)]


async def test_in_real_time_no_request_leaves_before_the_hold_ends(server):
    hold_s, refused_at = 0.4, []

    def answer(arrival):
        if len(server.arrivals) != 40:
            return Reply()
        refused_at.append(arrival.at)
        return Reply(429, {"Retry-After-Ms": str(round(hold_s * 1000))})

    server.answer = answer

    async def call(session):
        while not refused_at or server.arrivals[-1].at < refused_at[0] + hold_s / 2:
            await fetch(session, server.url)

    async with ClientSession(middlewares=[shaped_middleware(rate="200/s")]) as session:
        await asyncio.gather(*(call(session) for _ in range(5)))
    after = [arrival.at - refused_at[0] for arrival in server.arrivals[41:]]
    # Some requests may have been on their way, and those have left by the time that the answer arrives.
    assert len([at for at in after if at < hold_s]) <= 4
    assert len(after) >= 5


async def test_without_feedback_a_refusal_holds_no_key(server, clock, left):
    server.answer = lambda _: Reply(429, {"Retry-After": "60"})
    middleware = shaped_middleware(rate="1/s", clock=clock, feedback=None)
    async with ClientSession(middlewares=[middleware]) as session:
        for _ in range(2):
            assert (await fetch(session, server.url))[0] == 429
    assert clock.now() == 1.0


async def test_closing_the_policy_wakes_waiting_requests(server):
    clock = ManualClock()
    policy = Policy("1/s", clock=clock)
    async with ClientSession(middlewares=[shaped_middleware(policy=policy)]) as session:
        await fetch(session, server.url)
        waiting = asyncio.create_task(fetch(session, server.url))
        await clock.aadvance(0.5)
        policy.close()
        with pytest.raises(aiohttp.ClientError) as caught:
            await waiting
    assert isinstance(caught.value, StoreUnavailableError)


async def test_bodies_are_streamed_both_ways(clock):
    # The server sends a part only after it received one: a client that collects whole bodies waits for ever.
    words = asyncio.Queue()

    async def echo(request):
        response = web.StreamResponse()
        await response.prepare(request)
        async for word in request.content.iter_any():
            await response.write(word.upper())
        await response.write_eof()
        return response

    async def upload():
        while word := await words.get():
            yield word

    application = web.Application()
    application.router.add_post("/", echo)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    url = f"http://{HOST}:{runner.addresses[0][1]}/"
    async with ClientSession(middlewares=[shaped_middleware(rate="1/s", clock=clock)]) as session:
        words.put_nowait(b"one")
        async with session.post(url, data=upload()) as response:
            assert await response.content.readany() == b"ONE"
            words.put_nowait(b"two")
            assert await response.content.readany() == b"TWO"
            words.put_nowait(b"")
            assert await response.content.readany() == b""
    await runner.cleanup()


async def test_a_refusal_of_a_long_wait_is_an_error_of_both_libraries(server, clock):
    middleware = shaped_middleware(rate="1/min", max_wait="2s", quota="2/day", clock=clock)
    async with ClientSession(middlewares=[middleware]) as session:
        await fetch(session, server.url)
        with pytest.raises(aiohttp.ClientError) as caught:
            await session.get(server.url)
        assert type(caught.value) is ours.QueueFullError
        assert (caught.value.delay, caught.value.max_wait, caught.value.key) == (60.0, 2.0, HOST)
        clock.advance(60)
        await fetch(session, server.url)
        with pytest.raises(aiohttp.ClientError) as spent:
            await session.get(server.url)
        assert type(spent.value) is ours.QuotaExhaustedError
    assert len(server.arrivals) == 2
    for error in (caught.value, spent.value):
        assert isinstance(error, ShapekitError)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.args, str(copy)) == (type(error), error.args, str(error))


async def test_switched_off_requests_leave_at_once(server, clock, left):
    async with ClientSession(middlewares=[shaped_middleware(rate="1/min", clock=clock)]) as session:
        with off():
            for _ in range(3):
                await fetch(session, server.url)
    assert left == [0.0] * 3


def test_wrong_arguments_are_refused_when_the_middleware_is_made(refused):
    refused(lambda: shaped_middleware(rate="1/s", on_reject="respond"), "on_reject")
    refused(shaped_middleware, "rate")
    refused(lambda: shaped_middleware(rate="often"), "rate")
    refused(lambda: shaped_middleware(rate="1/s", nonsense=1), "nonsense")
    refused(lambda: shaped_middleware(policy=Policy("1/s"), rate="1/s"), "rate")


@pytest.mark.parametrize("package", ["aiohttp", "requests"])
def test_without_the_package_the_import_error_names_the_extra(package):
    code = f"import sys; sys.modules[{package!r}] = None; import shapekit.integrations.{package}"
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert run.returncode == 1
    assert f'pip install "shapekit[{package}]"' in run.stderr.splitlines()[-1]
