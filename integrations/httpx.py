"""httpx: requests of a client leave when they may, and wait when the server says so, all workers as one.

    client = httpx.Client(transport=ShapedTransport(rate="10/s"))
    client = shape(httpx.AsyncClient(proxy="http://proxy:3128"), rate="10/s")

Each request that is sent counts, as the server counts it: redirects, both steps of a digest
authentication, what a client repeats. Connection retries (`retries=`) happen below, and are not seen.
"""

from __future__ import annotations

from ssl import SSLContext
from typing import Any, ClassVar, TypeVar, Unpack

from shapekit import errors
from shapekit._adapters.http.request import Outgoing, Shaping
from shapekit._adapters.http.transport import HeldStream, Transport, shape_client

try:
    import httpx
except ImportError as error:
    raise errors.missing("ShapedTransport", "httpx") from error

__all__ = [
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
    """A request that was not sent. Its arguments are those of the error of ours that it is, too."""

    def __init__(self, *args: Any) -> None:
        super().__init__("")
        self.args = args


class QueueFullError(errors.QueueFullError, _Unsent):
    """`shapekit.QueueFullError` that is an `httpx.TransportError`, too."""


class QuotaExhaustedError(errors.QuotaExhaustedError, _Unsent):
    """`shapekit.QuotaExhaustedError` that is an `httpx.TransportError`, too."""


class StoreUnavailableError(errors.StoreUnavailableError, _Unsent):
    """`shapekit.StoreUnavailableError` that is an `httpx.TransportError`, too."""


class _HeldStream(HeldStream, httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body during which its request is in flight."""


class ShapedTransport(Transport, httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A transport whose requests leave when they may: for `httpx.Client` and `httpx.AsyncClient`.

    Takes the keywords of `Policy`, or `policy=`, and:

    - `transport`: the one to send through. Without it one of httpx's own is made, when it is first
      needed, with whatever else is given: `verify`, `http2`, `limits`, `proxy`, `retries` …
    - `key`: "host" (the default), "host+method", "origin", a template such as `"{host}/{path[0]}"`, or a
      callable that is given the `httpx.Request`.
    - `routes`: `{"https://api.example.com/search": "30/min"}`: other rates or policies for what is below.
    - `on_reject="respond"`: whoever would wait too long gets a 429 of our own, and no error.

    A client that is given a `transport` takes no `verify`, `http2`, `limits` and `cert` of its own any more,
    nor proxies from the environment; and what it sends by `proxy=` or `mounts=` does not come by here.
    Give those to ShapedTransport, or use `shape(client, …)`.

    A request may say more: `extensions={"shapekit": {"cost": 5, "key": …, "max_wait": …, "skip": True}}`.
    A response says in `extensions["shapekit"]` by which key, how long and why its request was delayed.
    """

    library: ClassVar[Any] = httpx
    refusals: ClassVar[Any] = {
        errors.QueueFullError: QueueFullError,
        errors.QuotaExhaustedError: QuotaExhaustedError,
        errors.StoreUnavailableError: StoreUnavailableError,
    }
    held_stream: ClassVar[Any] = _HeldStream

    def __init__(
        self,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
        **options: Unpack[_Options],
    ) -> None:
        super().__init__(transport, **options)


def shape(client: ClientT, **shaping: Unpack[Shaping]) -> ClientT:
    """Shape an existing client, in place: its transport, its proxies and its mounts. Returns the client."""
    if not isinstance(client, (httpx.Client, httpx.AsyncClient)):
        raise errors.ConfigError("client", client, "is no client of httpx", "pass an httpx.Client")
    shape_client(client, ShapedTransport, Outgoing("shape", **shaping))
    return client
