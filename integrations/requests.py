"""requests: an adapter that makes requests wait for their slots and obeys the server's limits.

    session = shape(requests.Session(), rate="10/s")
    session.mount("https://api.example.com", ShapedAdapter(rate="10/s"))

Each request that is sent counts, as it does for the server: redirects, and both steps of a digest
authentication. Retries by urllib3 (`max_retries=`) happen below the adapter and are not seen.
"""

from __future__ import annotations

import copy
import uuid
import weakref
from collections.abc import Callable
from io import BytesIO
from typing import Any, TypeVar, Unpack
from urllib.parse import urlsplit

from shapekit import errors
from shapekit._adapters.http import (
    Reading,
    RequestShaper,
    ResponseView,
    Shaping,
    ShapingInfo,
    UnsentError,
    body_may_tell,
    inner_options,
    may_say,
    observe,
    observe_body,
    options_now,
    refuse_rate,
    request_options,
    shaped_already,
    too_many,
    translated,
    twins_of,
)
from shapekit._runtime import process
from shapekit._runtime.drivers import run
from shapekit.errors import ConfigError, RateLimitedError
from shapekit.keys import Target
from shapekit.policy import Admission, Policy

try:
    import requests
    from requests.adapters import BaseAdapter, HTTPAdapter
    from urllib3 import HTTPResponse
except ImportError as error:
    raise errors.missing("ShapedAdapter", "requests") from error

__all__ = [
    "AccountExhaustedError",
    "QueueFullError",
    "QuotaExhaustedError",
    "ShapedAdapter",
    "StoreUnavailableError",
    "request_options",
    "shape",
]

SessionT = TypeVar("SessionT", bound=requests.Session)


class _Options(Shaping, total=False):
    """The keywords of `Policy` and of every wrapper, and those of `HTTPAdapter`."""

    pool_connections: int
    pool_maxsize: int
    max_retries: Any
    pool_block: bool


class _UnsentError(UnsentError, requests.RequestException):
    """A request that was not sent."""


class QueueFullError(errors.QueueFullError, _UnsentError):
    """`shapekit.QueueFullError` that is also a `requests.RequestException`."""


class QuotaExhaustedError(errors.QuotaExhaustedError, _UnsentError):
    """`shapekit.QuotaExhaustedError` that is also a `requests.RequestException`."""


class AccountExhaustedError(errors.AccountExhaustedError, QuotaExhaustedError):
    """`shapekit.AccountExhaustedError` that is also a `requests.RequestException`."""


class StoreUnavailableError(errors.StoreUnavailableError, _UnsentError):
    """`shapekit.StoreUnavailableError` that is also a `requests.RequestException`."""


_REFUSALS = twins_of(QueueFullError, QuotaExhaustedError, AccountExhaustedError, StoreUnavailableError)


class _Limit:
    """The limit that several adapters and their copies share."""

    def __init__(self, wrapper: str, shaping: Any, identity: str = "") -> None:
        self.request_shaper = RequestShaper(wrapper, _READING, **shaping)
        self._made_from = wrapper, shaping, identity or uuid.uuid4().hex

    def __reduce__(self) -> tuple[Any, ...]:
        _, shaping, identity = self._made_from
        for field in ("policy", "store", "clock"):
            if shaping.get(field) is not None:
                fix = "make the adapter in each process"
                raise ConfigError(field, shaping[field], "does not pickle", fix)
        _travelling(identity, lambda: self)
        return _arrived, self._made_from


def _arrived(wrapper: str, shaping: Any, identity: str) -> _Limit:
    return _travelling(identity, lambda: _Limit(wrapper, shaping, identity))


_TRAVELLED: dict[str, _Limit] = {}
"""Limits that were pickled or unpickled here, so that a worker that gets a copy per task has one limit."""
_MOST_TRAVELLED = 1_000
_TRAVEL = process.lock()


def _travelling(identity: str, otherwise: Callable[[], _Limit]) -> _Limit:
    with _TRAVEL:
        limit = _TRAVELLED.pop(identity, None) or otherwise()
        process.make_room(_TRAVELLED, _MOST_TRAVELLED)
        _TRAVELLED[identity] = limit
        return limit


class ShapedAdapter(BaseAdapter):
    """An adapter that shapes requests, to be mounted on a session.

    Takes the keywords of `Policy`, or `policy=`, and:

    - `adapter`: the adapter to send through. By default an `HTTPAdapter`, made with any further keywords:
      `max_retries`, `pool_maxsize` …
    - `key`: "host" (the default), "host+method", "origin", a template such as `"{host}/{path[0]}"`, or a
      callable that takes the `requests.PreparedRequest`.
    - `routes`: other rates or policies for a URL and everything below it, as in
      `{"https://api.example.com/search": "30/min"}`.
    - `on_reject="respond"`: a request that would wait too long gets a 429 made by shapekit, not an error.

    Set options of a request around it: `with request_options(cost=5, key=…, max_wait=…, skip=True):`.
    `response.shapekit` has the key, the delay and the decision of the request.

    A copy shares the limit of the original, and so does a pickled one in the same process. Another process
    has its own limit, shared by all copies there. For one limit across processes, give it a store that they
    share and make the adapter in each process: stores do not pickle. All other attributes are those of the
    inner adapter.
    """

    _adapter: BaseAdapter
    _limit: _Limit

    def __init__(self, adapter: BaseAdapter | None = None, **options: Unpack[_Options]) -> None:
        refuse_rate("adapter", adapter, "ShapedAdapter")
        inner = inner_options(options, HTTPAdapter, "adapter", adapter)
        shaping: Any = {name: value for name, value in options.items() if name not in inner}
        if adapter is None:
            adapter = HTTPAdapter(**inner)
        _settle(self, adapter, _Limit("ShapedAdapter", shaping))

    @property
    def policy(self) -> Policy:
        """The policy of requests that match no route, for holds and forecasts; ConfigError without one."""
        return self._limit.request_shaper.policy

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Any:
        """Send the request once it may leave."""
        arguments: Any = {
            "stream": stream,
            "timeout": timeout,
            "verify": verify,
            "cert": cert,
            "proxies": proxies,
        }
        try:
            admission = self._limit.request_shaper.enter(request, options_now())
        except (RateLimitedError, errors.StoreUnavailableError) as error:
            return self._refused(error, request)
        if admission is None:
            return self._sent(request, arguments)
        try:
            response = self._sent(request, arguments)
        except BaseException as error:
            admission.__exit__(type(error), error, error.__traceback__)
            raise
        try:
            response.shapekit = ShapingInfo.of(admission)
            if admission.holds_permit:
                _hold(response, admission)
            if may_say(admission, response.status_code, response.headers):
                admission.target = _target(request)
                run(observe, admission, response)
                content_type = response.headers.get("Content-Type")
                # A session reads such a body next.
                if not stream and body_may_tell(admission, response.status_code, content_type):
                    reply = ResponseView(response.status_code, response.headers, response.content)
                    run(observe_body, admission, reply)
        except BaseException:
            response.close()
            raise
        return response

    def _sent(self, request: requests.PreparedRequest, arguments: Any) -> Any:
        response: Any = self._adapter.send(request, **arguments)
        if getattr(response, "connection", None) is self._adapter:
            # Digest authentication sends its second step through this.
            response.connection = self
        return response

    def _refused(
        self, error: RateLimitedError | errors.StoreUnavailableError, request: requests.PreparedRequest
    ) -> Any:
        if self._limit.request_shaper.responds and isinstance(error, RateLimitedError):
            status, headers, body, info = too_many(error)
            raw = HTTPResponse(
                BytesIO(body), headers, status, reason="Too Many Requests", preload_content=False
            )
            builder: Any = self
            response: Any = HTTPAdapter.build_response(builder, request, raw)
            response.shapekit = info
            return response
        refusal = translated(error, _REFUSALS)
        if isinstance(refusal, _UnsentError):
            refusal.request = request
        raise refusal

    def close(self) -> None:
        """Close the inner adapter. The limit and its store stay open."""
        self._adapter.close()

    def __getattr__(self, name: str) -> Any:
        if name in ("_adapter", "_limit"):
            raise AttributeError(f"{type(self).__name__} has no {name} before its __init__ was called")
        return getattr(self._adapter, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # A subclass may set attributes before it calls `__init__`.
        if "_adapter" in self.__dict__:
            setattr(self._adapter, name, value)
        else:
            super().__setattr__(name, value)

    def __copy__(self) -> ShapedAdapter:
        return _around(type(self), self._adapter, self._limit)

    def __deepcopy__(self, memo: dict[int, Any]) -> ShapedAdapter:
        return _around(type(self), copy.deepcopy(self._adapter, memo), self._limit)

    def __reduce__(self) -> tuple[Any, ...]:
        return _around, (type(self), self._adapter, self._limit)

    def __repr__(self) -> str:
        return f"ShapedAdapter({self._adapter!r})"


def _settle(made: ShapedAdapter, adapter: BaseAdapter, limit: _Limit) -> None:
    if not isinstance(adapter, BaseAdapter):
        raise ConfigError("adapter", adapter, "is not an adapter of requests", "pass one, or leave it out")
    early = dict(made.__dict__)  # what a subclass has set before
    made.__dict__.clear()
    made.__dict__.update(_adapter=adapter, _limit=limit)
    for name, value in early.items():
        setattr(made, name, value)


def _around(kind: type[ShapedAdapter], adapter: BaseAdapter, limit: _Limit) -> ShapedAdapter:
    """An adapter that shares the given limit."""
    made = kind.__new__(kind)
    _settle(made, adapter, limit)
    return made


def shape(session: SessionT, **shaping: Unpack[Shaping]) -> SessionT:
    """Shape a session in place: all mounted adapters, under one limit. Returns the session.

    Adapters mounted later are not shaped.
    """
    if not isinstance(session, requests.Session):
        raise ConfigError("session", session, "is not a session of requests", "pass a requests.Session")
    if any(isinstance(adapter, ShapedAdapter) for adapter in session.adapters.values()):
        raise shaped_already("session", session)
    limit = _Limit("shape", shaping)
    for prefix, adapter in session.adapters.items():
        session.adapters[prefix] = _around(ShapedAdapter, adapter, limit)
    return session


def _hold(response: Any, admission: Admission) -> None:
    """Keep the request in flight until its body has ended or is closed, through any of its objects."""
    raw = response.raw
    # Without a connection, as for mocks, files and caches, the body is here already.
    if getattr(raw, "closed", True) or getattr(raw, "connection", None) is None:
        admission.leave()
        return
    whole = weakref.ref(response)
    for owner, method in ((response, "close"), (raw, "close"), (raw, "release_conn")):
        if hasattr(owner, method):
            setattr(owner, method, _leaving(owner, method, whole, admission))


def _leaving(owner: Any, method: str, whole: Callable[[], Any], admission: Admission) -> Callable[[], Any]:
    # Weak references: a response that is dropped must be collected at once.
    itself, call = weakref.ref(owner), getattr(type(owner), method)
    inner = vars(owner).get(method)  # set by another adapter inside this one

    def leaving() -> Any:
        try:
            if inner is not None:
                return inner()
            return None if itself() is None else call(itself())
        finally:
            # A garbage-collected body closes itself; one that was kept alone is closed by its user.
            if method == "release_conn" or whole() is not None:
                admission.leave()
            else:
                admission.drop()

    return leaving


def _host(request: requests.PreparedRequest) -> str:
    return urlsplit(request.url or "").hostname or ""


def _target(request: requests.PreparedRequest) -> Target:
    parts = urlsplit(request.url or "")
    try:
        port = parts.port
    except ValueError:
        # Only for a scheme whose URLs requests itself does not parse.
        port = None
    return Target(request.method or "", parts.scheme, parts.hostname or "", port, parts.path)


_READING = Reading(_host, _target)
