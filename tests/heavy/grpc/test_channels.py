"""Synchronous channels: all kinds of call wait for their slots, and are otherwise as they were."""

import gc
import os
import pickle
import queue
import subprocess
import sys
import threading
import time

import grpc
import pytest
from grpc import StatusCode

from shapekit import Adaptive, ConfigError, ManualClock, Policy, errors
from shapekit.feedback import Feedback
from shapekit.integrations.grpc import (
    AccountExhaustedError,
    QueueFullError,
    QuotaExhaustedError,
    StoreUnavailableError,
    TimeoutTooShortError,
    request_options,
    shape,
)

from ...redis_server import shared_server
from .answers import HOLDS, NO_HOLDS, refusing, until


@pytest.fixture
def channel(target):
    with grpc.insecure_channel(target) as made:
        yield made


def with_call(channel, **options):
    response, call = channel.unary_unary("/test.Echo/UnaryUnary").with_call(b"hi", **options)
    assert call.code() is StatusCode.OK
    return [response]


KINDS = {
    "unary_unary": lambda channel, **options: [
        channel.unary_unary("/test.Echo/UnaryUnary")(b"hi", **options)
    ],
    "with_call": with_call,
    "unary_future": lambda channel, **options: [
        channel.unary_unary("/test.Echo/UnaryUnary").future(b"hi", **options).result()
    ],
    "unary_stream": lambda channel, **options: [
        *channel.unary_stream("/test.Echo/UnaryStream")(b"hi", **options)
    ],
    "stream_unary": lambda channel, **options: [
        channel.stream_unary("/test.Echo/StreamUnary")(iter([b"h", b"i"]), **options)
    ],
    "stream_future": lambda channel, **options: [
        channel.stream_unary("/test.Echo/StreamUnary").future(iter([b"h", b"i"]), **options).result()
    ],
    "stream_stream": lambda channel, **options: [
        *channel.stream_stream("/test.Echo/StreamStream")(iter([b"h", b"i"]), **options)
    ],
}
ANSWERS = {"unary_stream": 2, "stream_stream": 2}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def now(policy):
    return policy.shaper.core.clock.now()


def test_each_kind_of_call_takes_one_slot(channel, service, policy, kind):
    shaped = shape(channel, policy=policy)
    for _ in range(3):
        assert KINDS[kind](shaped) == [b"hi"] * ANSWERS.get(kind, 1)
    assert len(service.calls) == 3
    assert now(policy) == 120.0


def test_a_refusal_is_an_rpc_error_and_costs_nothing(channel, service, policy, kind):
    shaped = shape(channel, policy=policy)
    KINDS[kind](shaped)
    with pytest.raises(grpc.RpcError) as caught, request_options(max_wait="59s"):
        KINDS[kind](shaped)
    error = caught.value
    assert type(error) is QueueFullError
    assert isinstance(error, errors.QueueFullError)
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED
    assert error.code == "queue_full"
    assert error.details() == str(error)
    assert "max_wait=59 s" in str(error)
    assert error.retry_after == 1.0
    assert [*error.trailing_metadata()] == []
    assert len(service.calls) == 1
    KINDS[kind](shaped)
    assert now(policy) == 60.0


def test_a_refused_future_or_stream_is_a_call_that_has_ended(channel, policy):
    shaped = shape(channel, policy=policy)
    KINDS["unary_unary"](shaped)
    with request_options(max_wait=0):
        future = shaped.unary_unary("/test.Echo/UnaryUnary").future(b"hi")
        stream = shaped.stream_stream("/test.Echo/StreamStream")(iter([b"hi"]))
    ended = []
    future.add_done_callback(ended.append)
    assert ended == [future]
    assert future.done()
    assert not future.cancel()
    for call in (future, stream):
        assert call.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "max_wait=0 s" in call.details()
    assert isinstance(future.exception(), QueueFullError)
    with pytest.raises(QueueFullError):
        next(stream)


def test_errors_pickle():
    policy = Policy("1/min", quota="1/day", clock=ManualClock(), name="api")
    with policy.admit():
        pass
    with pytest.raises(errors.QuotaExhaustedError) as caught, policy.admit():
        pass
    for error in (
        QuotaExhaustedError(*caught.value.args),
        AccountExhaustedError(*caught.value.args),
        QueueFullError(caught.value.decision, "k", 2.0, 1.0, "api"),
        TimeoutTooShortError(caught.value.decision, "k", 2.0, 1.0, "api"),
        StoreUnavailableError("the store is gone"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), copy.args, copy.code()) == (str(error), error.args, error.code())
        assert copy.details() == str(error)
        assert repr(copy).startswith(type(error).__name__)
    assert StoreUnavailableError("gone").code() is StatusCode.UNAVAILABLE
    assert StoreUnavailableError("gone").details() == "gone"


# timeouts


def test_a_wait_that_does_not_fit_the_timeout_fails_at_once_and_costs_nothing(channel, service, policy, kind):
    shaped = shape(channel, policy=policy)
    KINDS[kind](shaped, timeout=50)
    with pytest.raises(TimeoutTooShortError) as caught:
        KINDS[kind](shaped, timeout=50)
    assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
    assert "a wait of 1 min exceeds the call's timeout of 50 s" in str(caught.value)
    assert (len(service.calls), now(policy)) == (1, 0.0)
    KINDS[kind](shaped, timeout=70)
    assert (len(service.calls), now(policy)) == (2, 60.0)


def test_the_shorter_of_timeout_and_max_wait_is_named(channel, policy):
    shaped = shape(channel, policy=policy)
    KINDS["unary_unary"](shaped)
    with pytest.raises(QueueFullError) as caught, request_options(max_wait="5s"):
        KINDS["unary_unary"](shaped, timeout=50)
    assert type(caught.value) is QueueFullError


def test_the_rest_of_the_timeout_goes_to_the_call(channel, service, kind):
    shaped = shape(channel, rate="2/s")
    for _ in range(2):
        KINDS[kind](shaped, timeout=5)
    first, second = [left for _, _, left in service.calls]
    assert 4.7 < first < 5.1
    assert second < 4.6


def test_a_call_without_timeout_has_none(channel, service, policy):
    KINDS["unary_unary"](shape(channel, policy=policy))
    # A server shows a far future as the deadline of a call without one.
    assert service.calls[0][2] is None or service.calls[0][2] > 10**6


# what a server says


@pytest.mark.parametrize(("says", "held_s"), HOLDS.values(), ids=HOLDS)
def test_a_refusal_of_the_server_holds_the_key(channel, service, kind, says, held_s):
    policy = Policy("1000/s", name="api", clock=ManualClock(autojump=True))
    shaped = shape(channel, policy=policy)
    service.says = refusing(**says)
    with pytest.raises(grpc.RpcError) as caught:
        KINDS[kind](shaped)
    assert caught.value.code() is says["code"]
    service.says = lambda context: None
    until(lambda: policy.forecast().first_in > 0.5)  # a future has ended before its callbacks
    KINDS[kind](shaped)
    assert now(policy) == held_s + 0.001


@pytest.mark.parametrize("says", NO_HOLDS.values(), ids=NO_HOLDS)
def test_other_errors_hold_nothing(channel, service, says):
    policy = Policy("1000/s", name="api", clock=ManualClock(autojump=True))
    shaped = shape(channel, policy=policy)
    service.says = refusing(**says)
    with pytest.raises(grpc.RpcError):
        KINDS["unary_unary"](shaped)
    service.says = lambda context: None
    KINDS["unary_unary"](shaped)
    assert now(policy) == 0.001


def test_a_message_that_is_too_long_is_no_refusal(target):
    policy = Policy("1000/s", name="api", clock=ManualClock(autojump=True))
    for limit in ("grpc.max_send_message_length", "grpc.max_receive_message_length"):
        with grpc.insecure_channel(target, options=[(limit, 1)]) as bare:
            with pytest.raises(grpc.RpcError) as caught:
                KINDS["unary_unary"](shape(bare, policy=policy))
            assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
    assert policy.forecast().first_in <= 0.002


def test_without_feedback_no_answer_is_read(channel, service):
    policy = Policy("1000/s", feedback=None, clock=ManualClock(autojump=True))
    service.says = refusing(**HOLDS["RetryInfo"][0])
    with pytest.raises(grpc.RpcError):
        KINDS["unary_unary"](shape(channel, policy=policy))
    assert policy.forecast().first_in <= 0.001


def test_a_custom_parser_reads_the_trailing_metadata(channel, service):
    read = []
    policy = Policy("1000/s", feedback=Feedback(read.append), clock=ManualClock(autojump=True))
    service.says = lambda context: context.set_trailing_metadata((("x-left", "0"), ("x-bin", b"1")))
    KINDS["unary_unary"](shape(channel, policy=policy))
    assert [(answer.status, dict(answer.fields)) for answer in read] == [(200, {"x-left": "0"})]


def test_a_refusal_without_a_time_lowers_an_adaptive_rate(channel, service):
    policy = Policy(adaptive=Adaptive(min="1/s", max="100/s"), clock=ManualClock(autojump=True))
    shaped = shape(channel, policy=policy)
    for _ in range(50):
        KINDS["unary_unary"](shaped)
    before = policy.shaper.adaptive.rate()
    assert before > 2
    service.says = refusing(code=StatusCode.RESOURCE_EXHAUSTED)
    with pytest.raises(grpc.RpcError):
        KINDS["unary_unary"](shaped)
    assert policy.shaper.adaptive.rate() < before


# the end of a call


def test_a_permit_is_given_back_when_the_call_ends(channel, kind):
    shaped = shape(channel, concurrency=1, max_wait="20s")
    for _ in range(3):
        KINDS[kind](shaped)


def test_a_call_that_failed_gives_its_permit_back(channel, service, kind):
    shaped = shape(channel, concurrency=1, max_wait="20s")
    service.says = refusing(code=StatusCode.NOT_FOUND)
    for _ in range(3):
        with pytest.raises(grpc.RpcError) as caught:
            KINDS[kind](shaped)
        assert caught.value.code() is StatusCode.NOT_FOUND


def test_a_stream_is_in_flight_until_it_is_cancelled(channel):
    shaped = shape(channel, concurrency=1, max_wait="20s")
    stream = shaped.unary_stream("/test.Echo/Endless")(b"hi")
    assert next(stream) == b"hi"
    with pytest.raises(QueueFullError), request_options(max_wait=0):
        KINDS["unary_unary"](shaped)
    assert stream.cancel()
    KINDS["unary_unary"](shaped)
    assert stream.code() is StatusCode.CANCELLED
    with pytest.raises(grpc.RpcError):
        next(stream)


def test_a_stream_that_is_dropped_is_cancelled_and_gives_its_permit_back(channel, service):
    shaped = shape(channel, concurrency=1, max_wait="20s")
    stream = shaped.unary_stream("/test.Echo/Endless")(b"hi")
    assert next(stream) == b"hi"
    del stream
    gc.collect()
    KINDS["unary_unary"](shaped)
    assert service.cancelled.wait(20)


def test_a_single_threaded_stream_gives_its_permit_back(target):
    options = [(grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)]
    with grpc.insecure_channel(target, options=options) as bare:
        shaped = shape(bare, concurrency=1, max_wait="20s")
        for _ in range(2):
            KINDS["unary_stream"](shaped)
        stream = shaped.unary_stream("/test.Echo/Endless")(b"hi")
        next(stream)
        del stream
        gc.collect()
        KINDS["unary_unary"](shaped)


def test_a_single_threaded_stream_that_is_cancelled_gives_both_of_two_permits_back(target):
    class Between(grpc.UnaryStreamClientInterceptor):
        def intercept_unary_stream(self, continuation, details, request):
            return continuation(details, request)

    inner, outer = Policy(concurrency=1, max_wait=0), Policy(concurrency=1, max_wait=0)
    options = [(grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)]
    with grpc.insecure_channel(target, options=options) as bare:
        shaped = shape(grpc.intercept_channel(shape(bare, policy=inner), Between()), policy=outer)
        stream = shaped.unary_stream("/test.Echo/Endless")(b"hi")
        next(stream)
        assert stream.cancel()
        with inner.admit(), outer.admit():
            pass


@pytest.mark.parametrize("with_deadline", [False, True])
def test_a_single_threaded_stream_that_is_cancelled_gives_its_permit_back(target, with_deadline):
    options = [(grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)]
    with grpc.insecure_channel(target, options=options) as bare:
        shaped = shape(bare, concurrency=1, max_wait="5s")
        stream = shaped.unary_stream("/test.Echo/Endless")(b"hi", timeout=0.2 if with_deadline else None)
        next(stream)
        if with_deadline:
            time.sleep(0.4)
        assert stream.cancel()
        assert not stream.cancel()
        KINDS["unary_unary"](shaped)
        with pytest.raises(grpc.RpcError):
            next(stream)


def test_a_call_that_a_callback_makes_is_refused_where_it_would_wait(channel, service):
    """A wait would block the thread that has to end the calls whose permits it waits for."""
    shaped, made = shape(channel, concurrency=2), queue.Queue()
    method = shaped.unary_unary("/test.Echo/UnaryUnary")
    goes_on = {"1": threading.Event(), "2": threading.Event()}

    def wait_for_its_event(context):
        number = dict(context.invocation_metadata()).get("number")
        if number is not None:
            goes_on[number].wait(20)

    service.says = wait_for_its_event
    first, second = (method.future(name.encode(), metadata=(("number", name),)) for name in goes_on)

    def make_both(ended):
        # The permit of the first call is back, and no other call ends before the second one goes on.
        made.put(method.future(b"3"))
        made.put(method.future(b"4"))

    first.add_done_callback(make_both)
    goes_on["1"].set()
    third, fourth = made.get(timeout=20), made.get(timeout=20)
    assert isinstance(fourth.exception(20), QueueFullError)
    assert "a callback made it on gRPC's own thread" in str(fourth.exception())
    goes_on["2"].set()
    assert [call.result(20) for call in (first, second, third)] == [b"1", b"2", b"3"]
    # On other threads calls wait as ever, also in a callback that is added after the end.
    first.add_done_callback(lambda ended: made.put(method(b"5")))
    assert made.get(timeout=20) == b"5"


def test_futures_do_not_deadlock(channel, service):
    shaped = shape(channel, rate="1000/s", concurrency=2, max_wait="20s")
    method = shaped.unary_unary("/test.Echo/UnaryUnary")
    futures = [method.future(b"%d" % number) for number in range(50)]
    assert [future.result(20) for future in futures] == [b"%d" % number for number in range(50)]
    assert len(service.calls) == 50


def test_a_call_that_never_counted_is_refunded(channel, service, kind):
    policy = Policy(
        "1/min",
        clock=ManualClock(autojump=True),
        refund_on=lambda error: error.code() is StatusCode.UNAVAILABLE,
    )
    shaped = shape(channel, policy=policy)
    service.says = refusing(code=StatusCode.UNAVAILABLE)
    with pytest.raises(grpc.RpcError):
        KINDS[kind](shaped)
    service.says = lambda context: None
    until(lambda: policy.forecast().first_in == 0.0)
    KINDS[kind](shaped)
    assert now(policy) == 0.0


# whose limit


def test_calls_of_a_channel_share_one_limit(channel, policy):
    shaped = shape(channel, policy=policy)
    KINDS["unary_unary"](shaped)
    KINDS["unary_stream"](shaped)
    assert now(policy) == 60.0


def test_channels_share_the_limit_of_a_policy(target, service, policy):
    with grpc.insecure_channel(target) as one, grpc.insecure_channel(target) as other:
        for channel in (one, other):
            KINDS["unary_unary"](shape(channel, policy=policy))
    assert now(policy) == 60.0


def test_a_template_over_service_and_method(channel, policy):
    shaped = shape(channel, policy=policy, key="{service}/{method}")
    KINDS["unary_unary"](shaped)
    KINDS["unary_stream"](shaped)
    assert now(policy) == 0.0
    assert policy.forecast(key="test.Echo/UnaryUnary").first_in == 60.0


def test_a_template_of_the_policy_may_read_the_request(channel):
    policy = Policy("1/min", key="{request}", clock=ManualClock(autojump=True))
    KINDS["unary_unary"](shape(channel, policy=policy))
    assert policy.forecast(key="b'hi'").first_in == 60.0


def test_a_callable_gets_the_call(channel):
    seen = []

    def key(rpc):
        seen.append(rpc)
        return dict(rpc.details.metadata)["tenant"]

    policy = Policy("1/min", clock=ManualClock(autojump=True))
    shaped = shape(channel, policy=policy, key=key)
    for tenant in ("a", "b"):
        KINDS["unary_unary"](shaped, metadata=(("tenant", tenant),))
        KINDS["stream_unary"](shaped, metadata=(("tenant", f"stream of {tenant}"),))
    assert now(policy) == 0.0
    assert [(rpc.service, rpc.method, rpc.request) for rpc in seen[:2]] == [
        ("test.Echo", "UnaryUnary", b"hi"),
        ("test.Echo", "StreamUnary", None),
    ]


def test_a_cost_by_the_request(channel):
    policy = Policy("60/min", burst=60, clock=ManualClock(autojump=True))
    shaped = shape(channel, policy=policy, cost=lambda rpc: 30 * len(rpc.request or b"."))
    KINDS["unary_unary"](shaped)
    assert now(policy) == 0.0
    KINDS["stream_unary"](shaped)
    assert now(policy) == 30.0
    with request_options(cost=1):
        KINDS["stream_unary"](shaped)
    assert now(policy) == 31.0


def test_routes_by_service_and_method(channel):
    clock = ManualClock(autojump=True)
    hour, minute = (Policy(rate, clock=clock) for rate in ("1/h", "1/min"))
    routes = {"/test.Echo": minute, "/test.Echo/UnaryStream": hour}
    shaped = shape(channel, routes=routes)
    for _ in range(2):
        KINDS["unary_unary"](shaped)
    assert clock.now() == 60.0
    for _ in range(2):
        KINDS["unary_stream"](shaped)
    assert clock.now() == 3660.0


def test_a_call_that_is_skipped_takes_nothing(channel, policy):
    shaped = shape(channel, policy=policy)
    with request_options(skip=True):
        for _ in range(3):
            KINDS["unary_unary"](shaped)
    assert policy.forecast().first_in == 0.0


# with other interceptors


class Repeating(grpc.UnaryUnaryClientInterceptor):
    """Makes each call twice, and records how each ended; with call details of its own."""

    def __init__(self):
        self.ended = []

    def intercept_unary_unary(self, continuation, client_call_details, request):
        class Details(grpc.ClientCallDetails):
            method = client_call_details.method
            timeout = 70
            metadata = (("by", "us"),)

        for _ in range(2):
            call = continuation(Details(), request)
            self.ended.append((call.code(), call.exception()))
        return call


def test_calls_that_an_interceptor_around_repeats_take_a_slot_each(channel, service, policy):
    around = Repeating()
    KINDS["unary_unary"](grpc.intercept_channel(shape(channel, policy=policy), around))
    assert (len(service.calls), now(policy)) == (2, 60.0)
    assert all(50 < left < 71 for _, _, left in service.calls)
    with pytest.raises(QueueFullError) as caught, request_options(max_wait=0):
        KINDS["unary_unary"](grpc.intercept_channel(shape(channel, policy=policy), around))
    assert [code for code, _ in around.ended] == [StatusCode.OK] * 2 + [StatusCode.RESOURCE_EXHAUSTED] * 2
    assert around.ended[-1][1] is caught.value


class Generating(grpc.UnaryStreamClientInterceptor):
    def intercept_unary_stream(self, continuation, client_call_details, request):
        return (response for response in continuation(client_call_details, request))


def test_a_stream_that_another_interceptor_replaced_passes(channel):
    shaped = shape(grpc.intercept_channel(channel, Generating()), concurrency=1, max_wait="20s")
    for _ in range(2):
        assert KINDS["unary_stream"](shaped) == [b"hi", b"hi"]


# mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "rate=None is missing"),
        ({"rate": "1/s", "key": "{host}"}, "names 'host'"),
        ({"rate": "1/s", "key": "method"}, "is not a template"),
        ({"rate": "1/s", "key": lambda rpc: 1}, None),
        ({"rate": "1/s", "on_reject": "respond"}, "needs a response"),
        ({"rate": "1/s", "routes": {"https://a.example.com": "1/s"}}, "neither a service nor a method"),
        ({"rate": "1/s", "routes": {"/": "1/s"}}, "neither a service nor a method"),
        ({"rate": "1/s", "brust": 1}, "is unknown"),
    ],
)
def test_the_error_about_a_wrong_option_names_it(channel, options, message):
    if message is None:
        with pytest.raises(ConfigError, match="is not text"):
            KINDS["unary_unary"](shape(channel, **options))
    else:
        with pytest.raises(ConfigError, match=message):
            shape(channel, **options)


def test_an_argument_that_is_no_channel_is_refused(channel):
    shaped = shape(channel, rate="1/s")
    for given, message in (
        (shaped, "shaped already"),
        ("1/s", r"write shape\(rate='1/s'\)"),
        (1j, "is not a gRPC channel"),
    ):
        with pytest.raises(ConfigError, match=message):
            shape(given, rate="1/s")


# processes

HAMMER = """
import sys, grpc
from shapekit.integrations.grpc import shape

target, url = sys.argv[1:]
with grpc.insecure_channel(target) as bare:
    call = shape(bare, rate="20/s", name="hammer", store=url).unary_unary("/test.Echo/UnaryUnary")
    for _ in range(10):
        call(b"hi", wait_for_ready=True)
"""


def test_processes_share_a_rate_through_redis(target, service):
    arrived = []
    service.says = lambda context: arrived.append(time.monotonic())
    url = f"redis://127.0.0.1:{shared_server().port}/0"
    crew = [subprocess.Popen([sys.executable, "-c", HAMMER, target, url]) for _ in range(2)]
    assert [process.wait(60) for process in crew] == [0, 0]
    assert len(arrived) == 20
    # 20 calls take 19 steps of 50 ms together; alone, each process would need only 9.
    assert max(arrived) - min(arrived) > 0.9


FORK = """
import os, sys
import grpc
from shapekit.integrations.grpc import shape

def channel():
    return shape(grpc.insecure_channel(sys.argv[1]), rate="20/s")

stream = channel().unary_stream("/test.Echo/Endless")(b"hi")
next(stream)
if os.fork():
    status = os.wait()[1]
    stream.cancel()
    os._exit(status >> 8)
try:
    call = channel().unary_unary("/test.Echo/UnaryUnary")
    for _ in range(3):
        call(b"hi", timeout=30)
except BaseException as error:
    print(repr(error), flush=True)
    os._exit(1)
os._exit(0)
"""


def test_a_child_that_was_forked_during_a_call_waits_for_its_slots(target):
    env = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_POLL_STRATEGY": "poll"}
    script = [sys.executable, "-W", "ignore", "-c", FORK, target]
    done = subprocess.run(script, check=False, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
