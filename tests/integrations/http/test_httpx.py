"""httpx and httpx2: when requests leave, what a refusal is, and which calls obey a server's answer."""

import copy
import json
import pickle

import anyio
import pytest

import shapekit
from shapekit import ManualClock, Policy, SQLiteStore
from shapekit._adapters.http import ShapingInfo

URL = "http://api.x/"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend_name(request):
    return request.param


def plain(library):
    return library.MockTransport(lambda _: library.Response(200, text="ok"))


def refusing(library, *replies):
    """Answers with these statuses and headers, then with 200."""
    left = list(replies)

    def answer(_):
        status, headers = left.pop(0) if left else (200, {})
        return library.Response(status, headers=headers)

    return library.MockTransport(answer)


def saying(**options):
    return {"extensions": {"shapekit": options}}


def run(backend, work):
    return anyio.run(work, backend=backend)


# leaving


def test_requests_leave_at_their_slots(both):
    library, wrapper = both
    clock = ManualClock(autojump=True)
    with library.Client(
        transport=wrapper.ShapedTransport(plain(library), rate="10/s", clock=clock)
    ) as client:
        passages = [client.get(URL).extensions["shapekit"] for _ in range(3)]
    assert clock.now() == 0.2
    assert [info.delay for info in passages] == [0.0, 0.1, 0.1]
    assert all(isinstance(info, ShapingInfo) and info.decision.allowed for info in passages)


def test_requests_of_tasks_leave_at_their_slots(both, anyio_backend_name):
    library, wrapper = both
    clock = ManualClock(autojump=True)

    async def work():
        transport = wrapper.ShapedTransport(plain(library), rate="10/s", clock=clock)
        async with library.AsyncClient(transport=transport) as client, anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(client.get, URL)

    run(anyio_backend_name, work)
    assert clock.now() == 0.4


def test_the_keys_of_a_client(both):
    library, wrapper = both

    def key(url, **shaping):
        transport = wrapper.ShapedTransport(plain(library), rate="10/s", **shaping)
        with library.Client(transport=transport) as client:
            return client.post(url).extensions["shapekit"].key

    assert key("http://API.x:8080/v1/a%2Fb?q=1") == "api.x"
    assert key("http://api.x/v1/a%2Fb?q=1", key="{method} {path[1]}") == "POST a/b"
    assert key("http://bücher.x/", key="host") == "xn--bcher-kva.x"
    assert key("http://api.x/v1", key=lambda request: request.url.path) == "/v1"
    assert key("http://api.x/v1", routes={"http://api.x/v1": Policy(1, key="v1")}) == "v1"


def test_options_apply_to_one_request(both):
    library, wrapper = both
    clock = ManualClock(autojump=True)
    with library.Client(
        transport=wrapper.ShapedTransport(plain(library), rate="10/s", clock=clock)
    ) as client:
        client.get(URL, **saying(cost=5))
        assert "shapekit" not in client.get(URL, **saying(skip=True)).extensions
        assert client.get(URL, **saying(key="other")).extensions["shapekit"].delay == 0
        assert client.get(URL).extensions["shapekit"].delay == 0.5
        with pytest.raises(shapekit.ConfigError, match=r"shapekit\.cots"):
            client.get(URL, **saying(cots=5))


# refusals


def test_a_refusal_is_an_error_of_both_libraries(both):
    library, wrapper = both
    transport = wrapper.ShapedTransport(plain(library), rate="1/h", max_wait=1, clock=ManualClock())
    with library.Client(transport=transport) as client:
        client.get(URL)
        with pytest.raises(library.TransportError) as caught:
            client.get(URL)
    error = caught.value
    assert isinstance(error, shapekit.QueueFullError)
    assert isinstance(error, wrapper.QueueFullError)
    assert (error.code, error.key, error.max_wait, error.delay) == ("queue_full", "api.x", 1.0, 3600.0)
    assert error.request.url == URL
    assert "exceeds max_wait=1 s" in str(error)


def test_a_spent_quota_is_an_error_of_both_libraries(both):
    library, wrapper = both
    transport = wrapper.ShapedTransport(plain(library), quota="1/day", clock=ManualClock())
    with library.Client(transport=transport) as client:
        client.get(URL)
        with pytest.raises(wrapper.QuotaExhaustedError) as caught:
            client.get(URL)
    assert isinstance(caught.value, library.TransportError)
    assert isinstance(caught.value, shapekit.QuotaExhaustedError)


def test_a_store_that_is_gone_is_an_error_of_both_libraries(both, tmp_path):
    library, wrapper = both
    store = SQLiteStore(tmp_path / "limits.db")
    transport = wrapper.ShapedTransport(plain(library), rate="1/h", name="x", store=store)
    store.close()
    with (
        library.Client(transport=transport) as client,
        pytest.raises(wrapper.StoreUnavailableError) as caught,
    ):
        client.get(URL)
    assert isinstance(caught.value, library.TransportError)
    assert isinstance(caught.value, shapekit.StoreUnavailableError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value) != ""


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("shaping", [{"rate": "1/h", "max_wait": 1}, {"quota": "1/day"}])
def test_refusals_pickle(both, shaping, copied):
    library, wrapper = both
    transport = wrapper.ShapedTransport(plain(library), **shaping, clock=ManualClock())
    with library.Client(transport=transport) as client:
        client.get(URL)
        with pytest.raises(shapekit.RateLimitedError) as caught:
            client.get(URL)
    again = copied(caught.value)
    assert type(again) is type(caught.value)
    assert (again.args, str(again)) == (caught.value.args, str(caught.value))
    assert (again.decision, again.key) == (caught.value.decision, "api.x")
    assert again.request.url == URL


@pytest.mark.parametrize("is_async", [False, True])
def test_a_refusal_may_be_a_429_of_our_own(both, is_async):
    library, wrapper = both
    transport = wrapper.ShapedTransport(
        plain(library), rate="1/h", max_wait=1, on_reject="respond", clock=ManualClock()
    )

    async def work():
        async with library.AsyncClient(transport=transport) as client:
            return [await client.get(URL) for _ in range(2)]

    if is_async:
        _, response = anyio.run(work)
    else:
        with library.Client(transport=transport) as client:
            _, response = [client.get(URL) for _ in range(2)]
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "3599"
    assert response.json()["code"] == "queue_full"
    assert not response.extensions["shapekit"].decision
    assert response.is_closed
    assert response.headers["Content-Length"] == str(len(response.content))
    assert response.elapsed.total_seconds() >= 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("read", ["iter_raw", "iter_bytes"])
def test_a_429_of_our_own_is_streamed_like_any_other(both, is_async, read):
    library, wrapper = both
    transport = wrapper.ShapedTransport(
        plain(library), rate="1/h", max_wait=1, on_reject="respond", clock=ManualClock()
    )

    async def work():
        async with library.AsyncClient(transport=transport) as client:
            await client.get(URL)
            async with client.stream("GET", URL) as response:
                return b"".join([part async for part in getattr(response, f"a{read}")()])

    if is_async:
        body = anyio.run(work)
    else:
        with library.Client(transport=transport) as client:
            client.get(URL)
            with client.stream("GET", URL) as response:
                body = b"".join(getattr(response, read)())
    assert json.loads(body)["code"] == "queue_full"


def test_a_cost_that_can_never_be_admitted_is_no_transport_error(both):
    library, wrapper = both
    transport = wrapper.ShapedTransport(plain(library), rate="10/s", gates=(shapekit.GCRA("10/s"),))
    with (
        library.Client(transport=transport) as client,
        pytest.raises(shapekit.CostExceedsLimitError) as caught,
    ):
        client.get(URL, **saying(cost=11))
    assert not isinstance(caught.value, library.TransportError)


def test_a_refusal_by_the_inner_transport_is_raised_by_the_outer_one(both):
    library, wrapper = both
    clock = ManualClock()
    inner = wrapper.ShapedTransport(plain(library), rate="1/h", max_wait=0, clock=clock)
    outer = wrapper.ShapedTransport(inner, rate="10/s", on_reject="respond", clock=clock)
    with library.Client(transport=outer) as client:
        client.get(URL)
        clock.advance(1)
        with pytest.raises(wrapper.QueueFullError):
            client.get(URL)


# feedback


@pytest.mark.parametrize("is_async", [False, True])
def test_a_retry_after_is_obeyed(both, is_async):
    library, wrapper = both
    clock = ManualClock(autojump=True)
    inner = refusing(library, (429, {"Retry-After": "7"}))
    transport = wrapper.ShapedTransport(inner, rate="10/s", clock=clock)

    async def work():
        async with library.AsyncClient(transport=transport) as client:
            return [(await client.get(URL)).extensions["shapekit"].delay for _ in range(2)]

    if is_async:
        delays = anyio.run(work)
    else:
        with library.Client(transport=transport) as client:
            delays = [client.get(URL).extensions["shapekit"].delay for _ in range(2)]
    assert delays == [0.0, 7.1]


def test_other_hosts_do_not_wait(both):
    library, wrapper = both
    transport = wrapper.ShapedTransport(refusing(library, (429, {"Retry-After": "7"})), rate="10/s")
    with library.Client(transport=transport) as client:
        client.get(URL)
        assert client.get("http://api.y/").extensions["shapekit"].delay == 0


def test_feedback_may_be_switched_off(both):
    library, wrapper = both
    clock = ManualClock(autojump=True)
    inner = refusing(library, (429, {"Retry-After": "7"}))
    with library.Client(
        transport=wrapper.ShapedTransport(inner, rate="10/s", clock=clock, feedback=None)
    ) as client:
        assert [client.get(URL).extensions["shapekit"].delay for _ in range(2)] == [0.0, 0.1]


def failing(library, error):
    def answer(request):
        raise error(f"no {request.url}")

    return library.MockTransport(answer)


def test_connection_errors_pass_unchanged_and_count(both):
    library, wrapper = both
    clock = ManualClock(autojump=True)
    transport = wrapper.ShapedTransport(failing(library, library.ConnectError), rate="10/s", clock=clock)
    with library.Client(transport=transport) as client:
        for _ in range(2):
            with pytest.raises(library.ConnectError) as caught:
                client.get(URL)
    assert type(caught.value) is library.ConnectError
    assert clock.now() == 0.1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_never_counted_is_given_back(both, is_async):
    library, wrapper = both
    clock = ManualClock(autojump=True)
    transport = wrapper.ShapedTransport(
        failing(library, library.ConnectError), rate="10/s", clock=clock, refund_on=library.ConnectError
    )

    async def work():
        async with library.AsyncClient(transport=transport) as client:
            for _ in range(2):
                with pytest.raises(library.ConnectError):
                    await client.get(URL)

    if is_async:
        anyio.run(work)
    else:
        with library.Client(transport=transport) as client:
            for _ in range(2):
                with pytest.raises(library.ConnectError):
                    client.get(URL)
    assert clock.now() == 0.0


class Interrupt(BaseException):
    """Exceptions that may interrupt the reading of an answer and are no Exception."""


@pytest.mark.parametrize("where", ["feedback", "info"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_response_that_cannot_be_returned_is_closed(both, is_async, where, monkeypatch):
    library, wrapper = both
    closed = []

    class Body(library.SyncByteStream, library.AsyncByteStream):
        def __iter__(self):
            yield b""

        async def __aiter__(self):
            yield b""

        def close(self):
            closed.append("sync")

        async def aclose(self):
            closed.append("async")

    def interrupted(*_):
        raise Interrupt

    inner = library.MockTransport(lambda _: library.Response(200, stream=Body()))
    transport = wrapper.ShapedTransport(
        inner, rate="10/s", feedback=interrupted if where == "feedback" else None
    )
    if where == "info":
        monkeypatch.setattr(ShapingInfo, "of", interrupted)

    async def work():
        async with library.AsyncClient(transport=transport) as client:
            with pytest.raises(Interrupt):
                await client.get(URL)

    if is_async:
        anyio.run(work)
    else:
        with library.Client(transport=transport) as client, pytest.raises(Interrupt):
            client.get(URL)
    assert closed == ["async" if is_async else "sync"]


# cancelling


def test_a_request_cancelled_while_it_waits_sends_nothing_and_gives_its_slot_back(both, anyio_backend_name):
    library, wrapper = both
    sent = []

    def answer(request):
        sent.append(request)
        return library.Response(200)

    policy = Policy("1/h", key="api.x")

    async def work():
        transport = wrapper.ShapedTransport(library.MockTransport(answer), policy=policy)
        async with library.AsyncClient(transport=transport) as client:
            await client.get(URL)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.get, URL)
                await anyio.wait_all_tasks_blocked()
                assert policy.forecast().first_in > 3_600
                tasks.cancel_scope.cancel()

    run(anyio_backend_name, work)
    assert len(sent) == 1
    assert policy.forecast().first_in <= 3_600
