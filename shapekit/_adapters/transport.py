"""Transport: what the wrappers of httpx and httpx2 share; they differ only in the library's classes.

ShapedStream: a response body that keeps its request in flight until it ends, fails or is closed; or the body
of a refusal, which may say more than its headers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Self

from shapekit._adapters.http import (
    Reading,
    RequestShaper,
    ResponseView,
    ShapingInfo,
    body_may_tell,
    inner_options,
    may_say,
    observe,
    observe_body,
    refuse_rate,
    shaped_already,
    too_many,
    translated,
)
from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit.errors import UNSHOWN, ConfigError, RateLimitedError, ShapekitError, StoreUnavailableError
from shapekit.feedback import MOST_BYTES
from shapekit.keys import Target
from shapekit.policy import Admission, Policy


class ShapedStream:
    """A response body that gives the permit back when it ends; mixed in with the library's stream classes.

    With `reply_of`, it is also observed once it was read. It passes through unchanged, and is not read early.
    If a response is dropped unread, its admission is collected with it, which gives the permit back, too.
    """

    def __init__(
        self, stream: Any, admission: Admission, reply_of: Callable[[bytes], ResponseView] | None = None
    ) -> None:
        self._stream = stream
        self._admission = admission
        self._reply_of = reply_of

    def __iter__(self) -> Iterator[bytes]:
        body = bytearray()
        try:
            for part in self._stream:
                body += part[: self._room(body)]
                yield part
        except GeneratorExit:
            raise  # not closed yet; and the garbage collector may raise this, at any point
        except BaseException:
            self._admission.leave()
            raise
        self._admission.leave()
        run(self._ended, body)

    def close(self) -> None:
        """Close the body."""
        try:
            self._stream.close()
        finally:
            self._admission.leave()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        try:
            async for part in self._stream:
                body += part[: self._room(body)]
                yield part
        except BaseException as error:
            await TASKS.given_back(error, self._admission.aleave)
            raise
        await self._admission.aleave()
        await self._ended(TASKS, body)

    async def aclose(self) -> None:
        """`close`, awaitable."""
        try:
            await self._stream.aclose()
        except BaseException as error:
            await TASKS.given_back(error, self._admission.aleave)
            raise
        await self._admission.aleave()

    def _room(self, body: bytearray) -> int:
        """How many more bytes of the body are kept."""
        return 0 if self._reply_of is None else _KEPT - len(body)

    async def _ended(self, driver: Driver, body: bytearray) -> None:
        if self._reply_of is not None:
            await observe_body(driver, self._admission, self._reply_of(bytes(body)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _reply(library: Any, status: int, headers: Any, sent: bytes) -> ResponseView:
    """A response with its body, of which the beginning was sent."""
    body = None
    # A short body that is encoded twice may unpack to any size.
    if len(sent) < _KEPT and "," not in headers.get("content-encoding", ""):
        try:
            body = library.Response(status, headers=headers, content=sent).content
        except Exception as error:
            if process.from_signal(error):
                raise
            # If it cannot be decoded, the client raises that error itself.
    return ResponseView(status, headers, body)


_KEPT = MOST_BYTES + 1
"""How much of a body is kept: one byte more than is looked at."""
_SYNC, _ASYNC = "HTTPTransport", "AsyncHTTPTransport"


class _Inner(dict[str, Any]):
    """The wrapped transports, by the names of their classes in the library: the given one, or one made for
    each name.

    A transport is made, and the modules that it connects with are loaded, when it is first asked for. That is
    before the request waits for its slot, because either takes longer than a slot.
    """

    def __init__(self, library: Any, given: Any, options: dict[str, Any]) -> None:
        self.given = given
        self.options = options
        self._library = library
        self._lock = process.lock()

    def __missing__(self, kind: str) -> Any:
        if kind == _ASYNC:
            from anyio import get_cancelled_exc_class  # noqa: PLC0415 - loaded only for tasks

            get_cancelled_exc_class()  # loads anyio's backend for the running loop
        with self._lock:
            if kind not in self:
                given = self.given
                self[kind] = getattr(self._library, kind)(**self.options) if given is None else given
        return self[kind]


NAME = "shapekit"
"""The extension under which requests carry their options, and responses their `ShapingInfo`."""


class Transport:
    """A transport that delays requests until they may leave, and otherwise passes everything on unchanged."""

    library: ClassVar[Any]
    """The package whose client this is for."""
    refusals: ClassVar[Mapping[type[ShapekitError], type[Exception]]]
    """Errors that are both shapekit's and the library's, by the shapekit error."""
    _shaped_stream: ClassVar[Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A client accepts only bodies of its library's own classes.
        bodies = cls.library.SyncByteStream, cls.library.AsyncByteStream
        cls._shaped_stream = type("ShapedStream", (ShapedStream, *bodies), {})

    def __init__(self, transport: Any = None, **options: Any) -> None:
        refuse_rate("transport", transport, type(self).__name__)
        inner = inner_options(options, self.library.HTTPTransport, "transport", transport)
        shaping: Any = {name: value for name, value in options.items() if name not in inner}
        self._settle_on(transport, inner, RequestShaper(type(self).__name__, READING, **shaping))

    @classmethod
    def around(cls, transport: Any, request_shaper: RequestShaper) -> Self:
        """A wrapper that shares its request shaper with other wrappers."""
        made = cls.__new__(cls)
        cls._settle_on(made, transport, {}, request_shaper)
        return made

    def _settle_on(self, transport: Any, options: dict[str, Any], request_shaper: RequestShaper) -> None:
        methods = ("handle_request", "handle_async_request")
        if transport is not None and not any(hasattr(transport, method) for method in methods):
            raise ConfigError("transport", transport, "is not a transport", "pass one, or none at all")
        self._request_shaper = request_shaper
        self._inner = _Inner(self.library, transport, options)

    @property
    def policy(self) -> Policy:
        """The policy of requests that match no route, for holds and forecasts; ConfigError without one."""
        return self._request_shaper.policy

    # sending

    def handle_request(self, request: Any) -> Any:
        """Send the request when it may leave."""
        inner = self._inner[_SYNC]
        try:
            admission = self._request_shaper.enter(request, request.extensions.get(NAME))
        except (RateLimitedError, StoreUnavailableError) as error:
            return self._refused(error)
        if admission is None:
            return inner.handle_request(request)
        try:
            response = inner.handle_request(request)
        except BaseException as error:
            admission.__exit__(type(error), error, error.__traceback__)
            raise
        try:
            response.extensions[NAME] = ShapingInfo.of(admission)
            if admission.holds_permit or may_say(admission, response.status_code, response.headers.raw):
                run(self._hear, admission, request, response)
        except BaseException:
            response.close()
            raise
        return response

    async def handle_async_request(self, request: Any) -> Any:
        """`handle_request`, awaitable."""
        inner = self._inner[_ASYNC]
        try:
            admission = await self._request_shaper.aenter(request, request.extensions.get(NAME))
        except (RateLimitedError, StoreUnavailableError) as error:
            return self._refused(error)
        if admission is None:
            return await inner.handle_async_request(request)
        try:
            response = await inner.handle_async_request(request)
        except BaseException as error:
            await admission.__aexit__(type(error), error, error.__traceback__)
            raise
        try:
            response.extensions[NAME] = ShapingInfo.of(admission)
            if admission.holds_permit or may_say(admission, response.status_code, response.headers.raw):
                await self._hear(TASKS, admission, request, response)
        except BaseException as error:
            await TASKS.given_back(error, response.aclose)
            raise
        return response

    async def _hear(self, driver: Driver, admission: Admission, request: Any, response: Any) -> None:
        """Keep the request in flight until its body ends, and observe the response."""
        if admission.holds_permit:
            if response.is_closed:
                await driver.ask(Twin(admission.leave, admission.aleave))
            else:
                response.stream = self._shaped_stream(response.stream, admission)
        if not may_say(admission, response.status_code, response.headers.raw):
            return
        admission.target = _target(request)
        await observe(driver, admission, response)
        content_type = response.headers.get("content-type")
        # One that was read before has been observed.
        if not response.is_closed and body_may_tell(admission, response.status_code, content_type):
            # Not the response itself, which refers to this stream: a dropped one must be collected at once.
            reply_of = partial(_reply, self.library, response.status_code, response.headers)
            response.stream = self._shaped_stream(response.stream, admission, reply_of)

    def _refused(self, error: RateLimitedError | StoreUnavailableError) -> Any:
        if self._request_shaper.responds and isinstance(error, RateLimitedError):
            status, headers, body, info = too_many(error)
            # As a stream, which the client reads like any other.
            return self.library.Response(
                status,
                headers={**headers, "Content-Length": str(len(body))},
                stream=self.library.ByteStream(body),
                extensions={NAME: info},
            )
        raise translated(error, self.refusals)

    # what a client does beside sending

    def __enter__(self) -> Self:
        self._inner[_SYNC].__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inner[_SYNC].__exit__(*error)

    def close(self) -> None:
        """Close the wrapped transport. The limit and its store stay open."""
        if (inner := self._inner.get(_SYNC, self._inner.given)) is not None:
            inner.close()

    async def __aenter__(self) -> Self:
        await self._inner[_ASYNC].__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._inner[_ASYNC].__aexit__(*error)

    async def aclose(self) -> None:
        """`close`, awaitable."""
        if (inner := self._inner.get(_ASYNC, self._inner.given)) is not None:
            await inner.aclose()

    def __repr__(self) -> str:
        inner = next(iter(self._inner.values()), self._inner.given)
        options = ", ".join(f"{name}={UNSHOWN}" for name in self._inner.options)
        return f"{type(self).__name__}({options if inner is None else repr(inner)})"


def shape_client(client: Any, kind: type[Transport], request_shaper: RequestShaper) -> None:
    """Wrap a client's transport, its proxies and its mounts, in place."""
    own, mounts = client._transport, client._mounts  # noqa: SLF001 - httpx has no other names for them
    if any(isinstance(transport, kind) for transport in (own, *mounts.values())):
        raise shaped_already("client", client)
    client._transport = kind.around(own, request_shaper)  # noqa: SLF001
    for pattern, transport in mounts.items():
        if transport is not None:
            mounts[pattern] = kind.around(transport, request_shaper)


def _host(request: Any) -> str:
    host: str = request.url.raw_host.decode("ascii")
    return host


def _target(request: Any) -> Target:
    url = request.url
    path = url.raw_path.decode("ascii").partition("?")[0]
    return Target(request.method, url.scheme, _host(request), url.port, path)


READING = Reading(_host, _target)
"""How to read an `httpx.Request`, or one of httpx2."""
