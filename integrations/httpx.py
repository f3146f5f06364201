"""httpx: a transport that makes requests wait for their slots and obeys the server's limits.

    client = httpx.Client(transport=ShapedTransport(rate="10/s"))
    client = shape(httpx.AsyncClient(proxy="http://proxy:3128"), rate="10/s")

Each request that is sent counts, as it does for the server: redirects, both steps of a digest authentication,
retries by the client. Connection retries (`retries=`) happen below the transport and are not seen.
"""

from __future__ import annotations

from ssl import SSLContext
from typing import Any, ClassVar, TypeVar, Unpack

from shapekit import errors
from shapekit._adapters.http import RequestShaper, Shaping, twins_of
from shapekit._adapters.transport import READING, Transport, shape_client

try:
    import httpx
except ImportError as error:
    raise errors.missing("ShapedTransport", "httpx") from error

__all__ = [
    "AccountExhaustedError",
    "QueueFullError",
    "QuotaExhaustedError",
    "ShapedTransport",
    "StoreUnavailableError",
    "shape",
]

ClientT = TypeVar("ClientT", bound="httpx.Client | httpx.AsyncClient")


class _Options(Shaping, total=False):
    """The keywords of `Policy` and of every wrapper, and those of `httpx.HTTPTransport`."""

    verify: SSLContext | str | bool
    cert: Any
    trust_env: bool
    http1: bool
    http2: bool
    limits: httpx.Limits
    proxy: httpx.Proxy | httpx.URL | str | None
    uds: str | None
    local_address: str | None
    retries: int
    socket_options: Any


class _Unsent(httpx.TransportError):
    """A request that was not sent. Its arguments are those of the shapekit error that it also is."""

    def __init__(self, *args: Any) -> None:
        super().__init__("")
        self.args = args


class QueueFullError(errors.QueueFullError, _Unsent):
    """`shapekit.QueueFullError` that is also an `httpx.TransportError`."""


class QuotaExhaustedError(errors.QuotaExhaustedError, _Unsent):
    """`shapekit.QuotaExhaustedError` that is also an `httpx.TransportError`."""


class AccountExhaustedError(errors.AccountExhaustedError, QuotaExhaustedError):
    """`shapekit.AccountExhaustedError` that is also an `httpx.TransportError`."""


class StoreUnavailableError(errors.StoreUnavailableError, _Unsent):
    """`shapekit.StoreUnavailableError` that is also an `httpx.TransportError`."""


class ShapedTransport(Transport, httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A transport that shapes requests, for `httpx.Client` and `httpx.AsyncClient`.

    Takes the keywords of `Policy`, or `policy=`, and:

    - `transport`: the transport to send through. By default one of httpx's own, made on first use with any
      further keywords: `verify`, `http2`, `limits`, `proxy`, `retries` …
    - `key`: "host" (the default), "host+method", "origin", a template such as `"{host}/{path[0]}"`, or a
      callable that takes the `httpx.Request`.
    - `routes`: other rates or policies for a URL and everything below it, as in
      `{"https://api.example.com/search": "30/min"}`.
    - `on_reject="respond"`: a request that would wait too long gets a 429 made by shapekit, not an error.

    A client with a `transport` ignores its own `verify`, `http2`, `limits` and `cert`, and proxies from the
    environment; and requests that it sends through `proxy=` or `mounts=` bypass the transport. Give these
    options to ShapedTransport, or use `shape(client, …)`.

    Set options of a request by `extensions={"shapekit": {"cost": 5, "key": …, "max_wait": …, "skip": True}}`.
    `response.extensions["shapekit"]` has the key, the delay and the decision of the request.
    """

    library: ClassVar[Any] = httpx
    refusals: ClassVar[Any] = twins_of(
        QueueFullError, QuotaExhaustedError, AccountExhaustedError, StoreUnavailableError
    )

    def __init__(
        self,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
        **options: Unpack[_Options],
    ) -> None:
        super().__init__(transport, **options)


def shape(client: ClientT, **shaping: Unpack[Shaping]) -> ClientT:
    """Shape a client in place: its transport, proxies and mounts, under one limit. Returns the client."""
    if not isinstance(client, (httpx.Client, httpx.AsyncClient)):
        raise errors.ConfigError("client", client, "is not a client of httpx", "pass an httpx.Client")
    shape_client(client, ShapedTransport, RequestShaper("shape", READING, **shaping))
    return client
