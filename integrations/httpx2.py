"""httpx2: requests of a client leave when they may, and wait when the server says so, all workers as one.

    client = httpx2.Client(transport=ShapedTransport(rate="10/s"))
    client = shape(httpx2.AsyncClient(proxy="http://proxy:3128"), rate="10/s")

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
    import httpx2
except ImportError as error:
    raise errors.missing("ShapedTransport", "httpx2") from error

__all__ = [
    "QueueFullError",
    "QuotaExhaustedError",
    "ShapedTransport",
    "StoreUnavailableError",
    "shape",
]

ClientT = TypeVar("ClientT", bound="httpx2.Client | httpx2.AsyncClient")


class _Options(Shaping, total=False):
    """The keywords of `Policy` and of every wrapper, and those of `httpx2.HTTPTransport`."""

    verify: SSLContext | str | bool
    cert: Any
    trust_env: bool
    http1: bool
    http2: bool
    limits: httpx2.Limits
    proxy: httpx2.Proxy | httpx2.URL | str | None
    uds: str | None
    local_address: str | None
    retries: int
    socket_options: Any


class _Unsent(httpx2.TransportError):
    """A request that was not sent. Its arguments are those of the error of ours that it is, too."""

    def __init__(self, *args: Any) -> None:
        super().__init__("")
        self.args = args


class QueueFullError(errors.QueueFullError, _Unsent):
    """`shapekit.QueueFullError` that is an `httpx2.TransportError`, too."""


class QuotaExhaustedError(errors.QuotaExhaustedError, _Unsent):
    """`shapekit.QuotaExhaustedError` that is an `httpx2.TransportError`, too."""


class StoreUnavailableError(errors.StoreUnavailableError, _Unsent):
    """`shapekit.StoreUnavailableError` that is an `httpx2.TransportError`, too."""


class _HeldStream(HeldStream, httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body during which its request is in flight."""


class ShapedTransport(Transport, httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """A transport whose requests leave when they may: for `httpx2.Client` and `httpx2.AsyncClient`.

    Takes the keywords of `Policy`, or `policy=`, and:

    - `transport`: the one to send through. Without it one of httpx2's own is made, when it is first
      needed, with whatever else is given: `verify`, `http2`, `limits`, `proxy`, `retries` …
    - `key`: "host" (the default), "host+method", "origin", a template such as `"{host}/{path[0]}"`, or a
      callable that is given the `httpx2.Request`.
    - `routes`: `{"https://api.example.com/search": "30/min"}`: other rates or policies for what is below.
    - `on_reject="respond"`: whoever would wait too long gets a 429 of our own, and no error.

    A client that is given a `transport` takes no `verify`, `http2`, `limits` and `cert` of its own any more,
    nor proxies from the environment; and what it sends by `proxy=` or `mounts=` does not come by here.
    Give those to ShapedTransport, or use `shape(client, …)`.

    A request may say more: `extensions={"shapekit": {"cost": 5, "key": …, "max_wait": …, "skip": True}}`.
    A response says in `extensions["shapekit"]` by which key, how long and why its request was delayed.
    """

    library: ClassVar[Any] = httpx2
    refusals: ClassVar[Any] = {
        errors.QueueFullError: QueueFullError,
        errors.QuotaExhaustedError: QuotaExhaustedError,
        errors.StoreUnavailableError: StoreUnavailableError,
    }
    held_stream: ClassVar[Any] = _HeldStream

    def __init__(
        self,
        transport: httpx2.BaseTransport | httpx2.AsyncBaseTransport | None = None,
        **options: Unpack[_Options],
    ) -> None:
        super().__init__(transport, **options)


def shape(client: ClientT, **shaping: Unpack[Shaping]) -> ClientT:
    """Shape an existing client, in place: its transport, its proxies and its mounts. Returns the client."""
    if not isinstance(client, (httpx2.Client, httpx2.AsyncClient)):
        raise errors.ConfigError("client", client, "is no client of httpx2", "pass an httpx2.Client")
    shape_client(client, ShapedTransport, Outgoing("shape", **shaping))
    return client
