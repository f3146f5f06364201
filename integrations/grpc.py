"""gRPC: calls of a channel wait for their slots, and obey the server's refusals.

    channel = shape(grpc.insecure_channel("localhost:50051"), rate="10/s")

    channel = grpc.aio.insecure_channel("localhost:50051", interceptors=interceptors(rate="10/s"))

`shape` takes an existing channel. A channel on asyncio takes its interceptors only when it is made, one for
each kind of call: `interceptors` makes them.

A call takes one slot when it is sent, however many messages it then carries. Retries by gRPC itself, below
the interceptors (the retry policy of a service config), take none.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, Self, Unpack

from shapekit import errors
from shapekit._adapters.http import (
    Reading,
    RequestShaper,
    ResponseView,
    Shaping,
    UnsentError,
    by_timeout,
    hearing,
    may_say,
    observe,
    options_now,
    refuse_rate,
    request_options,
    shaped_already,
    translated,
    twins_of,
)
from shapekit._runtime.drivers import TASKS, run
from shapekit.errors import ConfigError, RateLimitedError
from shapekit.keys import KeyOf, KeySpec, KeyTemplate, Target, constantly, key_of, segments
from shapekit.policy import Admission

try:
    import grpc
    from grpc import StatusCode, aio
except ImportError as error:
    raise errors.missing("shape", "grpc") from error

__all__ = [
    "AccountExhaustedError",
    "QueueFullError",
    "QuotaExhaustedError",
    "Rpc",
    "StoreUnavailableError",
    "TimeoutTooShortError",
    "interceptors",
    "request_options",
    "shape",
]


class Rpc(NamedTuple):
    """A call that is about to be sent: the argument of a callable `key` or `cost`."""

    service: str
    """The full name of the service, such as "google.cloud.speech.v1.Speech"."""
    method: str
    """The name of the method, such as "Recognize"."""
    request: Any
    """The request message; None if the client sends a stream of them."""
    details: Any
    """The `grpc.ClientCallDetails`, with the call's metadata and timeout."""

    @classmethod
    def of(cls, details: Any, request: Any) -> Self:
        """From the arguments of an interceptor."""
        service, _, method = _path(details).strip("/").rpartition("/")
        return cls(service, method, request, details)


class _Code(str):
    """The code of a shapekit error, which also answers as the method `code` of an RpcError."""

    __slots__ = ("status",)
    status: StatusCode

    def __new__(cls, text: str, status: StatusCode) -> Self:
        made = super().__new__(cls, text)
        made.status = status
        return made

    def __call__(self) -> StatusCode:
        return self.status


class _UnsentError(UnsentError, aio.AioRpcError, grpc.Call, grpc.Future):  # pyright: ignore
    """A call that was not sent.

    Like the errors of gRPC's synchronous calls, it is also a call, which has ended: `.future()`, a stream and
    other interceptors get it in place of the call.
    """

    code: ClassVar[Any]  # pyright: ignore

    def __init__(self, *args: Any) -> None:
        aio.AioRpcError.__init__(self, self.code.status, aio.Metadata(), aio.Metadata())
        self.args = args

    __str__ = Exception.__str__

    def details(self) -> str:
        return str(self)

    def result(self, timeout: float | None = None) -> Any:
        raise self

    def exception(self, timeout: float | None = None) -> Self:
        return self

    def traceback(self, timeout: float | None = None) -> Any:
        return self.__traceback__

    def add_done_callback(self, fn: Any) -> None:
        fn(self)

    def done(self) -> bool:
        return True

    def running(self) -> bool:
        return False

    is_active = cancel = cancelled = running

    def add_callback(self, callback: Any) -> bool:
        return False

    def time_remaining(self) -> Any:
        return None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        raise self


class QueueFullError(errors.QueueFullError, _UnsentError):
    """`shapekit.QueueFullError` that is also a `grpc.RpcError`, with the status RESOURCE_EXHAUSTED."""

    code: ClassVar[Any] = _Code(errors.QueueFullError.code, StatusCode.RESOURCE_EXHAUSTED)


class TimeoutTooShortError(QueueFullError):
    """The timeout of the call is too short for the wait: raised at once, before anything is consumed."""

    @property
    def _bound(self) -> tuple[str, str]:
        return f"the call's timeout of {errors.seconds_words(self.max_wait)}", "raise timeout=…"


class _InCallbackError(QueueFullError):
    """The call was made on the thread that serves its channel, which it would have blocked."""

    def __str__(self) -> str:
        return f"{super().__str__()}; a callback made it on gRPC's own thread: make it on another one"


class QuotaExhaustedError(errors.QuotaExhaustedError, _UnsentError):
    """`shapekit.QuotaExhaustedError` that is also a `grpc.RpcError`, with the status RESOURCE_EXHAUSTED."""

    code: ClassVar[Any] = _Code(errors.QuotaExhaustedError.code, StatusCode.RESOURCE_EXHAUSTED)


class AccountExhaustedError(errors.AccountExhaustedError, QuotaExhaustedError):
    """`shapekit.AccountExhaustedError` that is also a `grpc.RpcError`, with the status RESOURCE_EXHAUSTED."""

    code: ClassVar[Any] = _Code(errors.AccountExhaustedError.code, StatusCode.RESOURCE_EXHAUSTED)


class StoreUnavailableError(errors.StoreUnavailableError, _UnsentError):
    """`shapekit.StoreUnavailableError` that is also a `grpc.RpcError`, with the status UNAVAILABLE."""

    code: ClassVar[Any] = _Code(errors.StoreUnavailableError.code, StatusCode.UNAVAILABLE)


_REFUSALS = twins_of(QueueFullError, QuotaExhaustedError, AccountExhaustedError, StoreUnavailableError)
_IN_CALLBACK = {**_REFUSALS, errors.QueueFullError: _InCallbackError}
_REFUSALS_OF_TIME = {**_REFUSALS, errors.QueueFullError: TimeoutTooShortError}


def shape(channel: grpc.Channel, **shaping: Unpack[Shaping]) -> grpc.Channel:
    """Return a channel whose calls are shaped; make your stubs with it.

    Takes the keywords of `Policy`, or `policy=`, and:

    - `key`: by default all calls of the channel share one limit, because a rate is what its server allows in
      total. A template such as `"{service}/{method}"` or `"{request.parent}"`, or a callable that takes an
      `Rpc`, gives each key its own limit.
    - `cost`: a number, or a callable that takes an `Rpc`.
    - `routes`: other rates or policies for a service or method, as in
      `{"/google.cloud.speech.v1.Speech/Recognize": "300/min"}`.

    The calling thread waits for the slot, also for a `.future()` or a stream: these return once the call has
    been sent. A call that a callback makes on gRPC's own thread never waits: if it would have to, it is
    refused at once. The `timeout` of a call covers its wait: if it is too short for that, the call raises
    TimeoutTooShortError at once; otherwise gRPC gets what is left of it.

    Set options of a call around it: `with request_options(cost=5, key=…, max_wait=…, skip=True):`.

    Shape the bare channel, and put other interceptors around it: then calls that they repeat wait, too.
    """
    refuse_rate("channel", channel, "shape")
    if isinstance(channel, aio.Channel):
        raise ConfigError(
            "channel",
            channel,
            "is an asyncio channel, which takes interceptors only when it is made",
            'write grpc.aio.insecure_channel(target, interceptors=interceptors(rate="10/s"))',
        )
    if not isinstance(channel, grpc.Channel):
        raise ConfigError("channel", channel, "is not a gRPC channel", "pass a grpc.Channel")
    if channel in _SHAPED:
        raise shaped_already("channel", channel, "call")
    shaped: grpc.Channel = grpc.intercept_channel(channel, _Interceptor(_request_shaper("shape", shaping)))
    _SHAPED.add(shaped)
    return shaped


_SHAPED: weakref.WeakSet[grpc.Channel] = weakref.WeakSet()


def interceptors(**shaping: Unpack[Shaping]) -> list[aio.ClientInterceptor]:
    """Return interceptors under one limit, for `grpc.aio.insecure_channel` or `secure_channel`.

    Takes the keywords of `shape`. They wait without blocking the event loop: awaiting or iterating a call
    waits for its slot first, and raises the refusal. List them last, after interceptors that repeat calls.
    """
    request_shaper = _request_shaper("interceptors", shaping)
    return [kind(request_shaper) for kind in (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)]


def _request_shaper(wrapper: str, shaping: Shaping) -> RequestShaper:
    request_shaper = RequestShaper(wrapper, _READING, **shaping)
    bound = "needs a response, and only the service can say what its messages are"
    request_shaper.refuse_responding(bound, "a grpc.RpcError")
    return request_shaper


class _Interceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Shapes the calls of a synchronous channel, in the thread that makes them."""

    def __init__(self, request_shaper: RequestShaper) -> None:
        self._request_shaper = request_shaper

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return self._call(continuation, client_call_details, request, request)

    intercept_unary_stream = intercept_unary_unary

    def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return self._call(continuation, client_call_details, request_iterator, None)

    intercept_stream_stream = intercept_stream_unary

    def _call(self, continuation: Any, details: Any, sent: Any, request: Any) -> Any:
        began = time.monotonic()
        # The permit that a call would wait for may belong to one that only this thread can end.
        fits_s = 0.0 if _SERVING.channel else details.timeout
        try:
            admission = self._request_shaper.enter(Rpc.of(details, request), options_now(), fits_s=fits_s)
        except (RateLimitedError, errors.StoreUnavailableError) as error:
            refused = translated(error, _IN_CALLBACK) if _SERVING.channel else _refusal(error, fits_s)
            if isinstance(refused, _UnsentError):
                return refused
            raise refused from error.__cause__
        if admission is None:
            return continuation(details, sent)
        try:
            call = continuation(_waited(details, time.monotonic() - began), sent)
        except BaseException as error:
            admission.__exit__(type(error), error, error.__traceback__)
            raise
        if not (isinstance(call, grpc.Call) and isinstance(call, grpc.Future)):
            # Another interceptor has replaced the call by an object that does not say when it ends.
            admission.leave()
            return call
        if call.done():
            _ended(call, admission)
            admission.leave()
            return call
        # A weak reference: a stream that is dropped has to be collected, and so cancelled.
        whole = weakref.ref(call)
        is_read_alone = type(call).__name__ == _READ_ALONE
        left, made_in = threading.Lock(), os.getpid()

        def over() -> None:
            if not left.acquire(blocking=False):
                return  # it was cancelled before
            known = whole()
            if known is not None:
                _ended(known, admission)
            admission.leave_soon()

        def ended() -> None:
            if os.getpid() != made_in:
                return  # gRPC cancels a parent's calls in its forked child; in the parent they go on
            # This thread serves the whole channel, and calls the program's own callbacks next.
            _SERVING.channel = not is_read_alone
            over()

        if not call.add_callback(ended):
            over()
        if is_read_alone:
            _leave_when_cancelled(call, over)
        return call


class _Serving(threading.local):
    channel = False
    """Whether gRPC serves a channel on this thread."""


_SERVING = _Serving()
_READ_ALONE = "_SingleThreadedRendezvous"
"""The type of a stream whose end gRPC notices only while the stream is read."""


def _leave_when_cancelled(call: Any, over: Callable[[], None]) -> None:
    """Call `over` when a stream is cancelled whose end is noticed only while it is read."""
    whole, cancel = weakref.ref(call), type(call).cancel
    inner = vars(call).get("cancel")  # set by another interceptor inside this one

    def cancel_and_leave() -> bool:
        is_cancelled: bool = cancel(whole()) if inner is None else inner()
        if is_cancelled:
            over()
        return is_cancelled

    call.cancel = cancel_and_leave


def _ended(call: Any, admission: Admission) -> None:
    """Observe what an ended call says about limits, and refund it if it does not count."""
    with hearing(admission):
        answer = _answer(call.code(), call.details(), call.trailing_metadata())
        if answer is not None and may_say(admission, answer.status, answer.headers):
            run(observe, admission, answer)
        if admission.policy.refund_on is not None:
            try:
                error = call.exception()
            except grpc.FutureCancelledError as cancelled:
                error = cancelled
            if error is not None:
                admission.__exit__(type(error), error, error.__traceback__)


class _AioInterceptor:
    """Shapes the calls of an asyncio channel. gRPC takes each interceptor for one kind of call only."""

    def __init__(self, request_shaper: RequestShaper) -> None:
        self._request_shaper = request_shaper
        self._watching: set[asyncio.Task[None]] = set()

    async def _call(self, continuation: Any, details: Any, sent: Any, request: Any) -> Any:
        began = time.monotonic()
        try:
            admission = await self._request_shaper.aenter(
                Rpc.of(details, request), options_now(), fits_s=details.timeout
            )
        except (RateLimitedError, errors.StoreUnavailableError) as error:
            raise _refusal(error, details.timeout) from error.__cause__
        if admission is None:
            return await continuation(details, sent)
        try:
            call = await continuation(_waited(details, time.monotonic() - began), sent)
        except BaseException as error:
            await admission.__aexit__(type(error), error, error.__traceback__)
            raise
        # A task, not a callback: a dropped call ends inside a finalizer, where no lock may be taken.
        task = asyncio.get_running_loop().create_task(_watch(call, admission))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return call


class _UnaryUnary(_AioInterceptor, aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._call(continuation, client_call_details, request, request)


class _UnaryStream(_AioInterceptor, aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._call(continuation, client_call_details, request, request)


class _StreamUnary(_AioInterceptor, aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await self._call(continuation, client_call_details, request_iterator, None)


class _StreamStream(_AioInterceptor, aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await self._call(continuation, client_call_details, request_iterator, None)


async def _watch(call: Any, admission: Admission) -> None:
    """Wait until a call has ended, observe what it says about limits, and end its admission."""
    error: BaseException | None = None
    try:
        with hearing(admission):
            if isinstance(call, aio.StreamUnaryCall):
                # If a message could not be sent, gRPC reports INTERNAL until the server's status arrives.
                with suppress(grpc.RpcError, asyncio.CancelledError):
                    await call
            code, details, metadata = await call.code(), await call.details(), await call.trailing_metadata()
            answer = _answer(code, details, metadata)
            if answer is not None and may_say(admission, answer.status, answer.headers):
                await observe(TASKS, admission, answer)
            if call.cancelled():
                error = asyncio.CancelledError()
            elif code is not StatusCode.OK:
                error = aio.AioRpcError(code, aio.Metadata(), metadata, details)
    finally:
        await admission.__aexit__(None if error is None else type(error), error, None)


def _refusal(error: errors.ShapekitError, timeout_s: float | None) -> Exception:
    return translated(error, _REFUSALS_OF_TIME if by_timeout(error, timeout_s) else _REFUSALS)


class _Details(grpc.ClientCallDetails):
    """Another interceptor's details of a call, with another timeout."""

    def __init__(self, details: Any, timeout: float) -> None:
        self._details = details
        self.timeout = timeout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._details, name)


def _waited(details: Any, waited_s: float) -> Any:
    """The details of a call after a wait, which its timeout includes."""
    if details.timeout is None:
        return details
    left_s = details.timeout - waited_s
    return details._replace(timeout=left_s) if hasattr(details, "_replace") else _Details(details, left_s)


# keys and routes

_FIELDS = ("service", "method", "request")
"""The values that a template may name."""
_KEY_FIX = 'write a template such as "{service}/{method}", or a callable that is given an Rpc'
_ROUTE_FIX = 'write "/package.Service", or "/package.Service/Method"'


def _path(details: Any) -> str:
    """The path of a call: gRPC has it as text, or on asyncio as bytes."""
    method: str | bytes = details.method
    return method.decode() if isinstance(method, bytes) else method


def _target(rpc: Rpc) -> Target:
    return Target("", "", "", None, _path(rpc.details))


def _key(spec: KeySpec | KeyTemplate) -> KeyOf:
    if spec in ("host", "default"):
        return constantly("default")  # a channel has one host
    if not isinstance(spec, (str, KeyTemplate)):
        return key_of(spec)
    template = KeyTemplate(spec if isinstance(spec, str) else spec.text, _FIELDS)
    if not template.fields:
        raise ConfigError("key", spec, "is not a template", _KEY_FIX)
    return lambda _, rpc: template(rpc._asdict())


def _route(text: object) -> Target:
    if not isinstance(text, str) or not text.startswith("/") or len(segments(text)) not in (1, 2):
        raise ConfigError("routes", text, "is neither a service nor a method", _ROUTE_FIX)
    return Target("", "", "", None, text)


_READING = Reading(lambda _: "default", _target, _key, _route)


# what a server says

_STATUSES = {
    StatusCode.OK: 200,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.UNKNOWN: 500,
    StatusCode.INTERNAL: 500,
    StatusCode.DATA_LOSS: 500,
    StatusCode.DEADLINE_EXCEEDED: 504,
}
_REJECTED = 400
"""Every other code: the server works, and rejects this call."""


def _answer(
    code: StatusCode, details: str | None, metadata: Iterable[tuple[str, Any]] | None
) -> ResponseView | None:
    """The end of a call as an HTTP response; None if it was cancelled: then the server said nothing."""
    if code is StatusCode.CANCELLED:
        return None
    values = dict(metadata or ())
    headers = {name: value for name, value in values.items() if isinstance(value, str)}
    # gRPC itself reports RESOURCE_EXHAUSTED, too, for a message that is too long.
    if code is StatusCode.RESOURCE_EXHAUSTED and "message larger than max (" in (details or ""):
        return ResponseView(_REJECTED, headers)
    wait_ms = max(_pushback_ms(values), _retry_info_ms(values))
    if wait_ms > 0:
        headers["retry-after-ms"] = str(wait_ms)
    return ResponseView(_STATUSES.get(code, _REJECTED), headers)


def _pushback_ms(metadata: dict[str, Any]) -> int:
    """The wait in `grpc-retry-pushback-ms`; 0 without one, or if it is negative: do not repeat the call."""
    text = metadata.get("grpc-retry-pushback-ms", "")
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() else 0


def _retry_info_ms(metadata: dict[str, Any]) -> int:
    """The wait in `google.rpc.RetryInfo`, one of the details of a `google.rpc.Status`; 0 if there is none.

    By hand, since nothing else here needs protobuf: Status.details is field 3, an Any has its type in 1 and
    its message in 2, RetryInfo.retry_delay is field 1, and a Duration has seconds in 1 and nanoseconds in 2.
    """
    try:
        for number, detail in _fields(metadata.get("grpc-status-details-bin", b"")):
            parts = dict(_fields(detail)) if number == 3 else {}
            if parts.get(1, b"").rpartition(b"/")[2] == b"google.rpc.RetryInfo":
                delay: dict[int, int] = dict(_fields(dict(_fields(parts.get(2, b""))).get(1, b"")))
                return math.ceil(delay.get(1, 0) * 1_000 + delay.get(2, 0) / 1_000_000)
    except (AttributeError, LookupError, TypeError, ValueError):
        pass  # malformed, so it says nothing
    return 0


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message, by number: whole numbers, or bytes."""
    at = 0
    while at < len(message):
        tag, at = _whole(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _whole(message, at)
            yield tag >> 3, value
            continue
        size, at = _whole(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if size < 0:
            raise ValueError(size)
        yield tag >> 3, message[at : at + size]
        at += size


def _whole(message: bytes, at: int) -> tuple[int, int]:
    """A varint, signed in 64 bits, and where the next field begins."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value - (value >> 63 << 64), at
