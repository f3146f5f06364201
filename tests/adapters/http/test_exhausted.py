"""A client that reads the refusal of an exhausted account holds its key, and returns the answer unchanged."""

import asyncio
import gc
import gzip
import json
import weakref

import aiohttp
import httpx2
import openai
import pytest
import requests

from shapekit import AccountExhaustedError, Policy, QueueFullError, QuotaExhaustedError
from shapekit.feedback import MOST_BYTES, Feedback, ServerHint
from shapekit.integrations import aiohttp as shaped_aiohttp
from shapekit.integrations import httpx2 as shaped_httpx2
from shapekit.integrations import requests as shaped_requests

from .server import Reply

JSON = {"Content-Type": "application/json; charset=utf-8"}
BODY = json.dumps({"error": {"message": "…", "type": "insufficient_quota", "code": None}}).encode()
SPENT = Reply(429, JSON, BODY)
PACKED = Reply(429, {**JSON, "Content-Encoding": "gzip"}, gzip.compress(BODY))
LOW = Reply(400, JSON, b'{"error": {"message": "Your credit balance is too low"}}')
EMPTY = Reply(402, JSON, b'{"error": {"message": "Insufficient Balance", "code": "invalid_request_error"}}')
REPLIES = {"a 429": SPENT, "packed": PACKED, "a 400": LOW, "a 402": EMPTY}
DECLINED = Reply(
    402, JSON, b'{"error": {"type": "card_error", "code": "card_declined", "message": "Declined."}}'
)


@pytest.fixture
def policy(clock):
    return Policy("10/s", name="api", max_wait=0, clock=clock)


@pytest.fixture
def held(policy):
    """For how long all calls are held."""
    return policy.shaper.held


async def in_session(policy, do):
    async with aiohttp.ClientSession(middlewares=[shaped_aiohttp.shaped_middleware(policy=policy)]) as made:
        return await do(made)


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
class TestHeldKey:
    def test_httpx(self, server, policy, held, both, reply):
        library, ours = both
        server.answer = lambda _: reply
        with library.Client(transport=ours.ShapedTransport(policy=policy)) as client:
            response = client.get(server.url)
            assert (response.status_code, response.content) == (reply.status, unpacked(reply))
            assert held() == 60
            with pytest.raises(library.TransportError) as caught:
                client.get(server.url)
        assert type(caught.value) is ours.AccountExhaustedError
        assert isinstance(caught.value, AccountExhaustedError)
        assert isinstance(caught.value, ours.QuotaExhaustedError)

    def test_httpx_awaited(self, server, policy, held, both, reply):
        library, ours = both
        server.answer = lambda _: reply

        async def main():
            async with library.AsyncClient(transport=ours.ShapedTransport(policy=policy)) as client:
                async with client.stream("GET", server.url) as response:
                    assert b"".join([part async for part in response.aiter_bytes()]) == unpacked(reply)
                assert held() == 60
                with pytest.raises(ours.AccountExhaustedError):
                    await client.get(server.url)

        asyncio.run(main())

    def test_requests(self, server, policy, held, reply):
        server.answer = lambda _: reply
        with shaped_requests.shape(requests.Session(), policy=policy) as session:
            response = session.get(server.url)
            assert (response.status_code, response.content) == (reply.status, unpacked(reply))
            assert held() == 60
            with pytest.raises(requests.RequestException) as caught:
                session.get(server.url)
        assert type(caught.value) is shaped_requests.AccountExhaustedError

    def test_aiohttp(self, server, policy, held, reply):
        server.answer = lambda _: reply

        async def main(session):
            # The response is not kept beside what is read of it.
            assert await (await session.get(server.url)).read() == unpacked(reply)
            assert held() == 60
            with pytest.raises(aiohttp.ClientError) as caught:
                await session.get(server.url)
            assert type(caught.value) is shaped_aiohttp.AccountExhaustedError

        asyncio.run(in_session(policy, main))


def fetched(server, reply, policy, both):
    """The body that a client of httpx reads from this reply."""
    library, ours = both
    server.answer = lambda _: reply
    with library.Client(transport=ours.ShapedTransport(policy=policy)) as client:
        return client.get(server.url).content


TOO_FAST = Reply(403, JSON, b'{"error": {"errors": [{"reason": "rateLimitExceeded"}]}}')


class TestParser:
    """A parser of the user's reads the error in a body, too."""

    @pytest.fixture
    def policy(self, clock):
        def google(answer):
            reasons = [one["reason"] for one in (answer.error or {}).get("errors", ())]
            return ServerHint(hold_s=5.0) if "rateLimitExceeded" in reasons else None

        return Policy("10/s", name="api", feedback=google, clock=clock)

    def test_httpx(self, server, policy, held, both):
        assert fetched(server, TOO_FAST, policy, both) == TOO_FAST.body
        assert held() == 5

    def test_requests(self, server, policy, held):
        server.answer = lambda _: TOO_FAST
        with shaped_requests.shape(requests.Session(), policy=policy) as session:
            assert session.get(server.url).content == TOO_FAST.body
        assert held() == 5

    def test_aiohttp(self, server, policy, held):
        server.answer = lambda _: TOO_FAST

        async def main(session):
            assert await (await session.get(server.url)).read() == TOO_FAST.body

        asyncio.run(in_session(policy, main))
        assert held() == 5

    def test_a_parser_that_fails_is_logged_and_the_caller_gets_the_answer(self, server, clock, both, caplog):
        policy = Policy("10/s", feedback=lambda answer: answer.error["code"], clock=clock)
        assert fetched(server, TOO_FAST, policy, both) == TOO_FAST.body
        assert {record.levelname for record in caplog.records} == {"ERROR"}


def unpacked(reply):
    return BODY if reply is PACKED else reply.body


OTHERS = {
    "too long": Reply(400, JSON, BODY.ljust(MOST_BYTES + 1)),
    "not JSON": Reply(400, {"Content-Type": "text/plain"}, BODY),
    "broken": Reply(400, JSON, BODY[:-1]),
    "another mistake": Reply(400, JSON, b'{"error": {"type": "invalid_request_error", "message": ""}}'),
    "another status": Reply(404, JSON, BODY),
    "a declined card": DECLINED,
    "a 402 alone": Reply(402),
}


@pytest.mark.parametrize("reply", OTHERS.values(), ids=OTHERS)
def test_other_bodies_hold_nothing(server, policy, held, both, reply):
    assert fetched(server, reply, policy, both) == reply.body
    assert held() == 0


@pytest.mark.parametrize(
    ("reply", "length"), [(Reply(402), 60), (EMPTY, 60), (DECLINED, 0)], ids=["none", "said", "other"]
)
def test_the_body_decides_what_a_402_of_a_model_provider_means(server, clock, both, reply, length):
    library, ours = both
    server.answer = lambda _: reply
    policy = Policy("10/s", feedback=Feedback("openai"), clock=clock)
    transport = ours.ShapedTransport(policy=policy)
    with library.Client(transport=transport) as client, client.stream("GET", server.url) as response:
        assert policy.shaper.held() == (0 if reply.headers else 60)
        response.read()
        assert policy.shaper.held() == length


def test_a_body_that_cannot_be_unpacked_raises_the_clients_own_error(server, policy, held, both):
    library, ours = both
    server.answer = lambda _: Reply(429, PACKED.headers, b"no gzip")
    with library.Client(transport=ours.ShapedTransport(policy=policy)) as client:
        with pytest.raises(library.DecodingError):
            client.get(server.url)
        policy.shaper.reset()
        with client.stream("GET", server.url) as response:
            assert b"".join(response.iter_raw()) == b"no gzip"
        assert held() == 1  # as a 429 without further fields


def test_a_body_that_is_packed_twice_is_not_looked_at(server, policy, held, both):
    library, ours = both
    body = gzip.compress(gzip.compress(BODY))
    server.answer = lambda _: Reply(429, {**JSON, "Content-Encoding": "gzip, gzip"}, body)
    with library.Client(transport=ours.ShapedTransport(policy=policy)) as client:
        assert client.get(server.url).content == BODY
    assert held() == 1  # it may be small and unpack to anything


def test_nothing_is_read_early(server, policy, held, both):
    library, ours = both
    server.answer = lambda _: SPENT
    transport = ours.ShapedTransport(policy=policy)
    with library.Client(transport=transport) as client, client.stream("GET", server.url) as response:
        assert not response.is_stream_consumed
        assert held() == 1
        assert b"".join(response.iter_raw()) == BODY
        assert held() == 60


def test_a_requests_stream_is_left_alone(server, policy, held):
    server.answer = lambda _: SPENT
    session = shaped_requests.shape(requests.Session(), policy=policy)
    with session, session.get(server.url, stream=True) as response:
        assert response.raw.read() == BODY
    assert held() == 1


@pytest.mark.parametrize("read", ["read", "text", "json"])
def test_aiohttp_observes_a_body_once_in_every_way_of_reading(server, policy, held, read):
    server.answer = lambda _: SPENT

    async def main(session):
        async with session.get(server.url) as response:
            assert held() == 1
            first = await getattr(response, read)()
            assert held() == 60
            assert await getattr(response, read)() == first
            return weakref.ref(response)

    response = asyncio.run(in_session(policy, main))
    assert response() is None


def test_without_feedback_no_answer_is_read(server, clock, both):
    library, ours = both
    server.answer = lambda _: SPENT
    policy = Policy("10/s", feedback=None, clock=clock)
    with library.Client(transport=ours.ShapedTransport(policy=policy)) as client:
        client.get(server.url)
    assert policy.shaper.held() == 0


def test_a_response_that_is_dropped_unread_is_collected_at_once(server, policy, both):
    library, ours = both
    server.answer = lambda _: SPENT
    transport = ours.ShapedTransport(policy=policy)
    gc.collect()
    gc.disable()
    try:
        response = transport.handle_request(library.Request("GET", server.url))
        gone = weakref.ref(response.stream)
        del response
        assert gone() is None
    finally:
        gc.enable()
        transport.close()


def test_a_refusal_is_looked_at_by_each_of_two_adapters(server, clock):
    server.answer = lambda _: SPENT
    points, calls = (Policy("10/s", name=name, clock=clock) for name in ("points", "calls"))
    with requests.Session() as session:
        inner = shaped_requests.ShapedAdapter(policy=points)
        session.mount("http://", shaped_requests.ShapedAdapter(inner, policy=calls))
        assert session.get(server.url).content == BODY
    assert (points.shaper.held(), calls.shaper.held()) == (60, 60)


def test_a_refusal_is_looked_at_by_each_of_two_middlewares(server, clock):
    server.answer = lambda _: SPENT
    points, calls = policies = [Policy("10/s", name=name, clock=clock) for name in ("points", "calls")]

    async def main():
        middlewares = [shaped_aiohttp.shaped_middleware(policy=each) for each in policies]
        async with aiohttp.ClientSession(middlewares=middlewares) as session:
            response = await session.get(server.url)
            return await response.read(), await response.read()

    assert asyncio.run(main()) == (BODY, BODY)
    assert (points.shaper.held(), calls.shaper.held()) == (60, 60)


def test_a_429_of_ours_about_an_exhausted_account_names_its_reason(server, policy, both):
    library, ours = both
    server.answer = lambda _: SPENT
    with library.Client(transport=ours.ShapedTransport(policy=policy, on_reject="respond")) as client:
        assert "Shapekit-Refused" not in client.get(server.url).headers
        response = client.get(server.url)
    assert (response.status_code, response.headers["Shapekit-Refused"]) == (429, "account_exhausted")
    assert response.headers["X-Should-Retry"] == "false"
    assert response.headers["Retry-After"] == "61"
    assert len(server.arrivals) == 1


@pytest.mark.parametrize(
    ("limits", "error"),
    [({"rate": "1/h"}, QueueFullError), ({"quota": "1/month"}, QuotaExhaustedError)],
)
def test_every_other_429_of_ours_names_its_reason(server, clock, limits, error):
    session = shaped_requests.shape(
        requests.Session(), **limits, max_wait=0, clock=clock, on_reject="respond"
    )
    with session:
        assert session.get(server.url).text == "ok"
        response = session.get(server.url)
    assert (response.status_code, response.headers["Shapekit-Refused"]) == (429, error.code)
    assert "X-Should-Retry" not in response.headers


@pytest.mark.parametrize("on_reject", ["raise", "respond"])
def test_the_retries_of_an_sdk_do_not_reach_the_server(server, policy, on_reject):
    server.answer = lambda _: SPENT._replace(headers={**JSON, "retry-after-ms": "1"})
    transport = shaped_httpx2.ShapedTransport(policy=policy, on_reject=on_reject)
    sdk = openai.OpenAI(
        api_key="none", base_url=server.url, max_retries=1, http_client=httpx2.Client(transport=transport)
    )
    with sdk, pytest.raises((openai.RateLimitError, openai.APIConnectionError)) as caught:
        sdk.models.list()
    assert len(server.arrivals) == 1
    if on_reject == "respond":
        assert caught.value.response.headers["Shapekit-Refused"] == "account_exhausted"
    else:
        assert isinstance(caught.value.__cause__, AccountExhaustedError)


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (403, {"X-GitHub-Request-Id": "1"}, b'{"message": "You have exceeded a secondary rate limit."}'),
        (429, {}, b'{"error": {"details": [{"retryDelay": "60s"}]}}'),
    ],
    ids=["GitHub", "Google"],
)
def test_each_client_reads_in_a_body_how_long_to_wait(server, both, clock, status, headers, body):
    library, ours = both
    server.answer = lambda _: Reply(status, {**JSON, **headers}, body)
    policies = [Policy("10/s", clock=clock) for _ in range(3)]
    with library.Client(transport=ours.ShapedTransport(policy=policies[0])) as client:
        client.get(server.url)
    shaped_requests.shape(requests.Session(), policy=policies[1]).get(server.url)

    async def do(session):
        async with session.get(server.url) as response:
            await response.read()

    asyncio.run(in_session(policies[2], do))
    assert [policy.shaper.held() for policy in policies] == [60] * 3
