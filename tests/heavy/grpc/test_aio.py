"""asyncio channels: all kinds of call wait without blocking the loop, and are otherwise as they were."""

import asyncio

import grpc
import pytest
from grpc import StatusCode

from shapekit import ConfigError, ManualClock, Policy, errors
from shapekit.integrations.grpc import (
    QueueFullError,
    TimeoutTooShortError,
    interceptors,
    request_options,
    shape,
)

from .answers import HOLDS, NO_HOLDS, refusing, until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def one_loop(anyio_backend):
    """All tests run on one event loop: grpc.aio leaves events of ended calls for a loop that is closed."""
    yield  # noqa: PT022 - the loop lives until this ends


@pytest.fixture
def connect(target):
    """Makes a channel with shaped calls."""
    return lambda **options: grpc.aio.insecure_channel(target, interceptors=interceptors(**options))


async def messages():
    yield b"h"
    yield b"i"


async def unary_unary(channel, **options):
    return [await channel.unary_unary("/test.Echo/UnaryUnary")(b"hi", **options)]


async def unary_stream(channel, **options):
    return [got async for got in channel.unary_stream("/test.Echo/UnaryStream")(b"hi", **options)]


async def unary_read(channel, **options):
    call = channel.unary_stream("/test.Echo/UnaryStream")(b"hi", **options)
    return [await call.read(), await call.read(), await call.read()][:2]


async def stream_unary(channel, **options):
    return [await channel.stream_unary("/test.Echo/StreamUnary")(messages(), **options)]


async def write_unary(channel, **options):
    call = channel.stream_unary("/test.Echo/StreamUnary")(**options)
    try:
        await call.write(b"h")
        await call.write(b"i")
        await call.done_writing()
    except asyncio.InvalidStateError:
        pass  # the call ended before everything was written; the response says why
    return [await call]


async def stream_stream(channel, **options):
    return [got async for got in channel.stream_stream("/test.Echo/StreamStream")(messages(), **options)]


async def write_stream(channel, **options):
    call = channel.stream_stream("/test.Echo/StreamStream")(**options)
    try:
        await call.write(b"h")
        await call.write(b"i")
        await call.done_writing()
    except asyncio.InvalidStateError:
        pass
    return [await call.read(), await call.read()]


KINDS = [
    unary_unary,
    unary_stream,
    unary_read,
    stream_unary,
    write_unary,
    stream_stream,
    write_stream,
]
TWICE = (unary_stream, unary_read, stream_stream, write_stream)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def now(policy):
    return policy.shaper.core.clock.now()


async def test_each_kind_of_call_takes_one_slot(connect, service, policy, kind):
    async with connect(policy=policy) as channel:
        for _ in range(3):
            assert await kind(channel) == [b"hi"] * (2 if kind in TWICE else 1)
    assert len(service.calls) == 3
    assert now(policy) == 120.0


class AioService(grpc.GenericRpcHandler):
    def service(self, handler_call_details):
        async def one(request, context):
            return request if isinstance(request, bytes) else b"".join([part async for part in request])

        async def many(request, context):
            whole = await one(request, context)
            yield whole
            yield whole

        return {
            "UnaryUnary": grpc.unary_unary_rpc_method_handler(one),
            "UnaryStream": grpc.unary_stream_rpc_method_handler(many),
            "StreamUnary": grpc.stream_unary_rpc_method_handler(one),
            "StreamStream": grpc.stream_stream_rpc_method_handler(many),
        }[handler_call_details.method.rpartition("/")[2]]


async def test_calls_to_an_asyncio_server_are_shaped_alike(policy, kind):
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((AioService(),))
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(target, interceptors=interceptors(policy=policy)) as channel:
        for _ in range(2):
            assert await kind(channel) == [b"hi"] * (2 if kind in TWICE else 1)
    await server.stop(None)
    assert now(policy) == 60.0


async def test_a_refusal_is_an_rpc_error_and_costs_nothing(connect, service, policy, kind):
    async with connect(policy=policy) as channel:
        await kind(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught, request_options(max_wait="59s"):
            await kind(channel)
        error = caught.value
        assert type(error) is QueueFullError
        assert isinstance(error, errors.QueueFullError)
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert error.details() == str(error)
        assert error.retry_after == 1.0
        assert len(service.calls) == 1
        await kind(channel)
        assert now(policy) == 60.0


async def test_a_refused_call_has_a_status_and_details(connect, policy):
    async with connect(policy=policy) as channel:
        await unary_unary(channel)
        with request_options(max_wait=0):
            call = channel.unary_stream("/test.Echo/UnaryStream")(b"hi")
            assert await call.code() is StatusCode.RESOURCE_EXHAUSTED
            assert "max_wait=0 s" in await call.details()
            assert [*await call.trailing_metadata()] == []
        assert call.done()
        assert not call.cancelled()


async def test_a_wait_that_does_not_fit_the_timeout_fails_at_once_and_costs_nothing(
    connect, service, policy, kind
):
    async with connect(policy=policy) as channel:
        await kind(channel, timeout=50)
        with pytest.raises(TimeoutTooShortError, match="the call's timeout of 50 s"):
            await kind(channel, timeout=50)
        assert (len(service.calls), now(policy)) == (1, 0.0)
        await kind(channel, timeout=70)
        assert (len(service.calls), now(policy)) == (2, 60.0)


async def test_the_rest_of_the_timeout_goes_to_the_call(connect, service, kind):
    async with connect(rate="2/s") as channel:
        for _ in range(2):
            await kind(channel, timeout=5)
    first, second = [left for _, _, left in service.calls]
    assert 4.7 < first < 5.1
    assert second < 4.6


@pytest.mark.parametrize(("says", "held_s"), HOLDS.values(), ids=HOLDS)
async def test_a_refusal_of_the_server_holds_the_key(connect, service, kind, says, held_s):
    policy = Policy("1000/s", name="api", clock=ManualClock(autojump=True))
    service.says = refusing(**says)
    async with connect(policy=policy) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            await kind(channel)
        assert caught.value.code() is says["code"]
        service.says = lambda context: None
        await kind(channel)
    assert now(policy) == held_s + 0.001


async def test_a_refusal_before_all_messages_were_sent_holds_the_key(policy):
    class Refused(grpc.aio.StreamUnaryCall):
        """A call whose server takes no more of its messages: INTERNAL, until the server's status arrives."""

        status = StatusCode.INTERNAL

        def __await__(self):
            yield from asyncio.sleep(0).__await__()
            self.status = StatusCode.RESOURCE_EXHAUSTED
            raise grpc.aio.AioRpcError(self.status, grpc.aio.Metadata(), grpc.aio.Metadata())

        async def code(self):
            return self.status

        async def details(self):
            return ""

        async def trailing_metadata(self):
            return grpc.aio.Metadata()

        def cancelled(self):
            return False

    Refused.__abstractmethods__ = frozenset()

    async def refused(details, request):
        return Refused()

    [shaping] = [kind for kind in interceptors(policy=policy) if hasattr(kind, "intercept_stream_unary")]
    details = grpc.aio.ClientCallDetails("/test.Echo/StreamUnary", None, None, None, None)
    await shaping.intercept_stream_unary(refused, details, messages())
    await asyncio.gather(*shaping._watching)
    assert policy.forecast().first_in == 61


@pytest.mark.parametrize("says", NO_HOLDS.values(), ids=NO_HOLDS)
async def test_other_errors_hold_nothing(connect, service, says):
    policy = Policy("1000/s", name="api", clock=ManualClock(autojump=True))
    service.says = refusing(**says)
    async with connect(policy=policy) as channel:
        with pytest.raises(grpc.RpcError):
            await unary_unary(channel)
        service.says = lambda context: None
        await unary_unary(channel)
    assert now(policy) == 0.001


async def test_a_waiting_call_leaves_the_loop_free_and_gives_its_slot_back_when_cancelled(connect, service):
    policy = Policy("1/min", name="api")
    async with connect(policy=policy) as channel:
        await unary_unary(channel)
        call = channel.unary_unary("/test.Echo/UnaryUnary")(b"hi")
        await asyncio.to_thread(until, lambda: policy.forecast().first_in > 100)
        assert not call.done()
        assert call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert call.cancelled()
        assert await call.code() is StatusCode.CANCELLED
        assert (await policy.aforecast()).first_in < 61
    assert len(service.calls) == 1


async def test_a_permit_is_given_back_when_the_call_ends(connect, kind):
    async with connect(concurrency=1, max_wait="20s") as channel:
        for _ in range(3):
            await kind(channel)


async def test_a_call_that_failed_gives_its_permit_back(connect, service, kind):
    service.says = refusing(code=StatusCode.NOT_FOUND)
    async with connect(concurrency=1, max_wait="20s") as channel:
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                await kind(channel)
            assert caught.value.code() is StatusCode.NOT_FOUND


async def test_a_stream_is_in_flight_until_it_is_cancelled(connect):
    async with connect(concurrency=1, max_wait="20s") as channel:
        stream = channel.unary_stream("/test.Echo/Endless")(b"hi")
        assert await stream.read() == b"hi"
        with pytest.raises(QueueFullError), request_options(max_wait=0):
            await unary_unary(channel)
        assert stream.cancel()
        await unary_unary(channel)
        assert await stream.code() is StatusCode.CANCELLED


async def test_a_stream_is_in_flight_at_most_until_its_channel_is_closed(connect, service):
    policy = Policy(concurrency=1, max_wait="20s")
    async with connect(policy=policy) as channel:
        stream = channel.unary_stream("/test.Echo/Endless")(b"hi")
        assert await stream.read() == b"hi"
        with pytest.raises(QueueFullError), request_options(max_wait=0):
            await unary_unary(channel)
    async with connect(policy=policy) as channel:
        await unary_unary(channel)


async def test_a_call_that_never_counted_is_refunded(connect, service, kind):
    policy = Policy(
        "1/min",
        clock=ManualClock(autojump=True),
        refund_on=lambda error: error.code() is StatusCode.UNAVAILABLE,
    )
    service.says = refusing(code=StatusCode.UNAVAILABLE)
    async with connect(policy=policy) as channel:
        with pytest.raises(grpc.RpcError):
            await kind(channel)
        service.says = lambda context: None
        await kind(channel)
    assert now(policy) == 0.0


async def test_a_cancelled_call_is_refunded_as_one(connect):
    policy = Policy("1/min", clock=ManualClock(), refund_on=asyncio.CancelledError)
    async with connect(policy=policy) as channel:
        stream = channel.unary_stream("/test.Echo/Endless")(b"hi")
        await stream.read()
        stream.cancel()
        await asyncio.to_thread(until, lambda: policy.forecast().first_in == 0.0)


async def test_keys_and_costs_read_the_call(connect):
    policy = Policy("60/min", burst=60, clock=ManualClock(autojump=True))
    options = {"key": "{service}/{method}", "cost": lambda rpc: 30 * len(rpc.request or b".")}
    async with connect(policy=policy, **options) as channel:
        await unary_unary(channel)
        await stream_unary(channel)
    assert (await policy.aforecast(key="test.Echo/UnaryUnary", cost=60)).first_in == 60.0
    assert (await policy.aforecast(key="test.Echo/StreamUnary", cost=60)).first_in == 30.0


async def test_channels_share_the_limit_of_a_policy(connect, policy):
    for _ in range(2):
        async with connect(policy=policy) as channel:
            await unary_unary(channel)
    assert now(policy) == 60.0


async def test_an_asyncio_channel_is_shaped_when_it_is_made(connect):
    async with connect(rate="1/s") as channel:
        with pytest.raises(ConfigError, match=r"interceptors=interceptors\(rate"):
            shape(channel, rate="1/s")
    with pytest.raises(ConfigError, match=r'write interceptors\(rate="10/s"\)'):
        interceptors()
