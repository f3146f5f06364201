"""aiohttp: a client middleware that makes requests wait for their slots and obeys the server's limits.

    async with aiohttp.ClientSession(middlewares=[shaped_middleware(rate="10/s")]) as session:
        async with session.get(url) as response:
            ...

Each request that is sent counts, as it does for the server: redirects, and retries by aiohttp or by other
middlewares. List it last: it does not see requests that a middleware after it sends.
"""

from __future__ import annotations

import math
import time
import weakref
from contextvars import ContextVar
from typing import Any, Unpack

from shapekit import errors
from shapekit._adapters.http import (
    Reading,
    RequestShaper,
    ResponseView,
    Shaping,
    UnsentError,
    body_may_tell,
    by_timeout,
    may_say,
    observe,
    observe_body,
    options_now,
    request_options,
    translated,
    twins_of,
)
from shapekit._runtime.drivers import TASKS
from shapekit._runtime.process import ErrorsLogged
from shapekit.errors import RateLimitedError
from shapekit.keys import Target
from shapekit.policy import Admission

try:
    import aiohttp
    from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse, ClientTimeout
except ImportError as error:
    raise errors.missing("shaped_middleware", "aiohttp") from error

__all__ = [
    "AccountExhaustedError",
    "QueueFullError",
    "QuotaExhaustedError",
    "StoreUnavailableError",
    "TimeoutTooShortError",
    "request_options",
    "shaped_middleware",
]


class _UnsentError(UnsentError, aiohttp.ClientError):
    """A request that was not sent."""


class QueueFullError(errors.QueueFullError, _UnsentError):
    """`shapekit.QueueFullError` that is also an `aiohttp.ClientError`."""


class TimeoutTooShortError(QueueFullError, TimeoutError):
    """The total timeout is too short for the wait: raised at once, before anything is consumed.

    It is also a TimeoutError, because waiting would have ended in one.
    """

    @property
    def _bound(self) -> tuple[str, str]:
        left = errors.seconds_words(self.max_wait)
        return f"the {left} that the total timeout leaves", "raise ClientTimeout(total=…)"


class QuotaExhaustedError(errors.QuotaExhaustedError, _UnsentError):
    """`shapekit.QuotaExhaustedError` that is also an `aiohttp.ClientError`."""


class AccountExhaustedError(errors.AccountExhaustedError, QuotaExhaustedError):
    """`shapekit.AccountExhaustedError` that is also an `aiohttp.ClientError`."""


class StoreUnavailableError(errors.StoreUnavailableError, _UnsentError):
    """`shapekit.StoreUnavailableError` that is also an `aiohttp.ClientError`."""


_REFUSALS = twins_of(QueueFullError, QuotaExhaustedError, AccountExhaustedError, StoreUnavailableError)
_REFUSALS_OF_TIME = {**_REFUSALS, errors.QueueFullError: TimeoutTooShortError}


def shaped_middleware(**shaping: Unpack[Shaping]) -> ClientMiddlewareType:
    """A middleware that shapes requests, for sessions or single requests.

    Takes the keywords of `Policy`, or `policy=`, and:

    - `key`: "host" (the default), "host+method", "origin", a template such as `"{host}/{path[0]}"`, or a
      callable that takes the `aiohttp.ClientRequest`.
    - `routes`: other rates or policies for a URL and everything below it, as in
      `{"https://api.example.com/search": "30/min"}`.

    The total timeout of a session or request also covers the wait for a slot: a wait that does not fit raises
    TimeoutTooShortError at once.

    Set options of a request around it: `with request_options(cost=5, key=…, max_wait=…, skip=True):`.
    """
    request_shaper = RequestShaper("shaped_middleware", _READING, **shaping)
    bound = "needs a response, and only aiohttp itself can make one"
    request_shaper.refuse_responding(bound, "an aiohttp.ClientError")

    async def shaped(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        left_s = _time_left(request, handler)
        try:
            admission = await request_shaper.aenter(request, options_now(), fits_s=left_s)
        except (RateLimitedError, errors.StoreUnavailableError) as error:
            raise translated(
                error, _REFUSALS_OF_TIME if by_timeout(error, left_s) else _REFUSALS
            ) from error.__cause__
        if admission is None:
            return await handler(request)
        if request.session.closed:
            # Closed during the wait. aiohttp itself expects waits only for a connection.
            with ErrorsLogged(admission.key, "keeps what it was charged"):
                await admission.asettle(0)
            await admission.aleave()
            raise aiohttp.ClientConnectionError("Session is closed")
        try:
            response = await handler(request)
        except BaseException as error:
            await admission.__aexit__(type(error), error, error.__traceback__)
            raise
        try:
            if admission.holds_permit:
                await _hold(response, admission)
            if may_say(admission, response.status, response.raw_headers):
                admission.target = _target(request)
                await observe(TASKS, admission, response)
                if body_may_tell(admission, response.status, response.content_type):
                    _observe_body(response, admission)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                response.close()
            raise
        return response

    return shaped


def _host(request: ClientRequest) -> str:
    return request.url.raw_host or ""


def _target(request: ClientRequest) -> Target:
    url = request.url
    return Target(request.method, url.scheme, _host(request), url.explicit_port, url.raw_path)


_READING = Reading(_host, _target)


async def _hold(response: ClientResponse, admission: Admission) -> None:
    """Keep the request in flight until its connection is released: the body has ended or was closed."""
    connection, itself = response.connection, weakref.ref(response)
    if connection is None:
        await admission.aleave()
        return

    def given_up() -> None:
        known = itself()
        # A garbage-collected response also releases its connection. A finalizer may take no locks, and the
        # admission is collected with it: the permit's own finalizer gives it back.
        if known is not None and known.closed:
            admission.leave_soon()

    connection.add_callback(given_up)


def _observe_body(response: ClientResponse, admission: Admission) -> None:
    """Look at the body when it is read, by `read`, `text` or `json`."""
    attributes = vars(response)
    inner = attributes.get("read")

    async def read() -> bytes:
        # Removed first, so that the response no longer refers to itself.
        attributes.pop("read", None)
        body: bytes = await (response.read() if inner is None else inner())
        await observe_body(TASKS, admission, ResponseView(response.status, response.raw_headers, body))
        return body

    attributes["read"] = read


_DEADLINE: ContextVar[tuple[Any, float]] = ContextVar("shapekit_aiohttp_deadline", default=(None, 0.0))
"""The timer of the task's current request, which redirects keep, and when it ends."""


def _time_left(request: ClientRequest, handler: ClientHandlerType) -> float | None:
    """Seconds until the total timeout; None if there is none, or it cannot be known."""
    total = _total(request, handler)
    if total is None:
        return None
    now = time.monotonic()
    timer = getattr(request, "_timer", None)
    known, deadline = _DEADLINE.get()
    if timer is None or timer is not known:
        _DEADLINE.set((timer, now + total))
        return total
    return deadline - now


def _total(request: ClientRequest, handler: Any) -> float | None:
    """The total timeout of the request, which it has from aiohttp 3.15 on; None if there is none.

    Before 3.15, only the inner function that sends the request knows it, as a closure variable, perhaps
    behind other middlewares. The session's own timeout would refuse waits that a single request has time for.
    """
    timeout: Any = getattr(request, "timeout", None)
    if not isinstance(timeout, _TIMEOUTS):
        timeout = _closed_over(handler)
    total = timeout.total if isinstance(timeout, ClientTimeout) else timeout
    # aiohttp also accepts a number as a total. Anything else is not aiohttp's.
    return total if isinstance(total, (int, float)) and 0 < total < math.inf else None


_TIMEOUTS = (ClientTimeout, int, float)


def _closed_over(handler: Any) -> Any:
    """The timeout in the function that finally sends the request; None if it is not found."""
    while True:
        names = getattr(getattr(handler, "__code__", None), "co_freevars", ())
        if "real_timeout" in names:
            return handler.__closure__[names.index("real_timeout")].cell_contents
        if "next_h" not in names:
            return None
        handler = handler.__closure__[names.index("next_h")].cell_contents
