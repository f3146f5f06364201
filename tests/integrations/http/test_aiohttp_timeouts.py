"""aiohttp's total timeout runs while a request waits: a request that cannot leave in time fails at once."""

import asyncio
import math
import sys
import time
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import ClientSession, ClientTimeout

from shapekit import ManualClock, Policy, QueueFullError, Quota, QuotaExhaustedError, SQLiteStore
from shapekit.integrations.aiohttp import TimeoutTooShortError, shaped_middleware

from ...adapters.http.server import Reply

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def policy():
    """One call a minute, of virtual time: a request that may wait for its slot gets there at once."""
    return Policy("1/min", clock=ManualClock(autojump=True))


async def bystander(request, handler):
    return await handler(request)


async def fetch(session, url, **options):
    async with session.get(url, **options) as response:
        return response.status


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("behind", [0, 2])
@pytest.mark.parametrize(
    ("of_session", "of_request", "fits"),
    [
        (ClientTimeout(total=50), {}, False),
        (ClientTimeout(total=70), {}, True),
        (ClientTimeout(), {}, True),
        (ClientTimeout(total=0), {}, True),
        (ClientTimeout(total=3e9), {}, True),
        (ClientTimeout(total=sys.maxsize), {}, True),
        (ClientTimeout(connect=5, sock_read=5), {}, True),
        (ClientTimeout(total=50), {"timeout": ClientTimeout(total=70)}, True),
        (ClientTimeout(total=70), {"timeout": ClientTimeout(total=50)}, False),
        (ClientTimeout(total=50), {"timeout": ClientTimeout()}, True),
        (ClientTimeout(), {"timeout": ClientTimeout(total=50)}, False),
    ],
)
async def test_the_timeout_of_the_request_counts_else_that_of_the_session(
    server, policy, before, behind, of_session, of_request, fits
):
    middlewares = [*[bystander] * before, shaped_middleware(policy=policy), *[bystander] * behind]
    async with ClientSession(middlewares=middlewares, timeout=of_session) as session:
        await fetch(session, server.url, **of_request)
        if fits:
            await fetch(session, server.url, **of_request)
        else:
            with pytest.raises(TimeoutTooShortError):
                await fetch(session, server.url, **of_request)
    assert len(server.arrivals) == 1 + fits
    assert policy.shaper.core.store.clock.now() == 60.0 * fits


async def test_the_refusal_comes_at_once_costs_nothing_and_says_why(server):
    policy = Policy("1/min")
    middlewares = [shaped_middleware(policy=policy)]
    async with ClientSession(middlewares=middlewares, timeout=ClientTimeout(total=20)) as session:
        await fetch(session, server.url)
        before = policy.forecast().first_in
        started = time.monotonic()
        with pytest.raises(aiohttp.ClientError, match="that the total timeout leaves") as caught:
            await fetch(session, server.url)
        assert time.monotonic() - started < 5
        assert policy.forecast().first_in <= before
    error = caught.value
    assert isinstance(error, QueueFullError)
    assert isinstance(error, TimeoutError)
    assert 55 < error.delay <= 60
    assert 15 < error.max_wait <= 20
    assert error.errno is None


async def test_a_shorter_max_wait_is_named_instead(server):
    policy = Policy("1/min", max_wait="5s")
    middlewares = [shaped_middleware(policy=policy)]
    async with ClientSession(middlewares=middlewares, timeout=ClientTimeout(total=20)) as session:
        await fetch(session, server.url)
        with pytest.raises(QueueFullError, match="raise max_wait") as caught:
            await fetch(session, server.url)
    assert not isinstance(caught.value, TimeoutError)
    assert caught.value.max_wait == 5.0


async def test_time_that_a_redirect_took_is_gone(server):
    def answer(arrival):
        if arrival.path == "/there":
            return Reply()
        time.sleep(0.3)
        return Reply(302, {"Location": "/there"})

    server.answer = answer
    policy = Policy("10/49s", clock=ManualClock(autojump=True))
    middlewares = [shaped_middleware(policy=policy)]
    async with ClientSession(middlewares=middlewares, timeout=ClientTimeout(total=5)) as session:
        with pytest.raises(TimeoutTooShortError) as caught:
            await fetch(session, f"{server.url}/here")
        assert (caught.value.delay, len(server.arrivals)) == (4.9, 1)
        # The next request has a timeout of its own.
        await fetch(session, f"{server.url}/there")
    assert len(server.arrivals) == 2


async def test_a_hold_beyond_the_timeout_fails_at_once_too(server):
    server.answer = lambda arrival: Reply(429, {"Retry-After": "60"})
    policy = Policy("100/s", clock=ManualClock(autojump=True))
    middlewares = [shaped_middleware(policy=policy)]
    async with ClientSession(middlewares=middlewares, timeout=ClientTimeout(total=20)) as session:
        assert await fetch(session, server.url) == 429
        with pytest.raises(TimeoutTooShortError):
            await fetch(session, server.url)
    assert len(server.arrivals) == 1


def request(timeout):
    """A request that carries its timeout, as those of aiohttp 3.15 do."""
    url, session = aiohttp.client.URL("http://host/"), SimpleNamespace(closed=False)
    return SimpleNamespace(method="GET", url=url, timeout=timeout, session=session)


ANSWER = SimpleNamespace(status=200, raw_headers=())


async def handler(request):
    return ANSWER


@pytest.mark.parametrize(
    ("short", "long"), [(ClientTimeout(total=5), ClientTimeout(total=70)), (5, 70), (0.5, 70.5)]
)
async def test_a_timeout_that_the_request_carries_bounds_the_wait(short, long):
    middleware = shaped_middleware(rate="1/min", clock=ManualClock(autojump=True))
    assert await middleware(request(short), handler) is ANSWER
    with pytest.raises(TimeoutTooShortError):
        await middleware(request(short), handler)
    assert await middleware(request(long), handler) is ANSWER


@pytest.mark.parametrize("unusable", [None, 0, -1, math.nan, math.inf, "5", object(), (5, 5)])
async def test_an_unusable_timeout_bounds_nothing(unusable):
    middleware = shaped_middleware(rate="1/min", clock=ManualClock(autojump=True))
    for timeout in (unusable, ClientTimeout(total=unusable)):
        assert await middleware(request(timeout), handler) is ANSWER


async def test_a_timeout_that_shapekit_cannot_see_ends_the_wait(server):
    policy = Policy("1/min", clock=ManualClock())
    shaped = shaped_middleware(policy=policy)

    async def opaque(request, handler):
        class Handler:
            async def __call__(self, request):
                return await handler(request)

        return await shaped(request, Handler())

    async with ClientSession(middlewares=[opaque]) as session:
        await fetch(session, server.url)
        with pytest.raises(asyncio.TimeoutError) as caught:
            await fetch(session, server.url, timeout=ClientTimeout(total=0.2))
    assert type(caught.value) is TimeoutError
    assert policy.forecast().first_in == 60.0
    assert len(server.arrivals) == 1


QUOTA = Quota(2, "rolling:1h")
SPENT = {
    "plain": {"rate": "100/s"},
    "with permits": {"rate": "100/s", "concurrency": 5},
    "on a shared store": {"rate": "100/s", "concurrency": 5, "name": "api"},
}


async def spend(session, url):
    for _ in range(2):
        await fetch(session, url)


@pytest.mark.parametrize("options", SPENT.values(), ids=SPENT)
async def test_a_spent_quota_refuses_whatever_the_timeout_leaves(server, options, tmp_path):
    """The timeout is no `max_wait`: it does not allow a request to wait for the quota."""
    store = SQLiteStore(tmp_path / "limits") if "name" in options else None
    middlewares = [shaped_middleware(quota=QUOTA, store=store, **options)]
    async with ClientSession(middlewares=middlewares, timeout=ClientTimeout(total=7_200)) as session:
        await spend(session, server.url)
        with pytest.raises(QuotaExhaustedError):
            await fetch(session, server.url)
    assert len(server.arrivals) == 2


async def test_a_spent_quota_refuses_where_the_server_has_named_scopes(server):
    policy = Policy("100/s", quota=QUOTA)
    policy.scoped.scopes.any_known = True
    middlewares = [shaped_middleware(policy=policy)]
    async with ClientSession(middlewares=middlewares, timeout=ClientTimeout(total=7_200)) as session:
        await spend(session, server.url)
        with pytest.raises(QuotaExhaustedError):
            await fetch(session, server.url)
    policy = Policy("100/s")
    policy.scoped.scopes.any_known = True
    policy.shaper.hold("1min")
    async with ClientSession(middlewares=[shaped_middleware(policy=policy)]) as session:
        with pytest.raises(TimeoutTooShortError):
            await fetch(session, server.url, timeout=ClientTimeout(total=20))


async def test_a_max_wait_covers_the_quota(server):
    policy = Policy("100/s", quota=QUOTA, max_wait="2h", clock=ManualClock(1_000, autojump=True))
    middlewares = [shaped_middleware(policy=policy)]
    async with ClientSession(middlewares=middlewares, timeout=ClientTimeout(total=7_200)) as session:
        await spend(session, server.url)
        await fetch(session, server.url)
    assert len(server.arrivals) == 3
