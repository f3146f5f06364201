"""Target: where an outgoing request goes, which decides its key and its route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from shapekit.errors import ConfigError
from shapekit.keys import KeySpec, KeyTemplate

__all__ = ["Target"]

T = TypeVar("T")

KeyOf: TypeAlias = Callable[["Target", Any], str]
"""Returns the key of a request, from its target and the request itself."""

FIELDS = ("method", "scheme", "host", "port", "origin", "path")
"""The values that a template may name."""
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_KEY_FIX = (
    'write "host", "host+method", "origin", a template such as "{host}/{path[0]}", a callable that is given '
    'the request, or "default" for one key for all'
)
_ROUTE_FIX = 'write a URL such as "https://api.example.com/search"'


class Target(NamedTuple):
    """Where a request goes, as the client sends it."""

    method: str
    scheme: str
    host: str
    """In lower-case ASCII; other letters as `xn--…`."""
    port: int | None
    """None for the scheme's default port."""
    path: str
    """Percent-encoded, without the query."""

    @property
    def full_port(self) -> int | None:
        """The port, including the scheme's default."""
        return self.port or _PORTS.get(self.scheme)

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.full_port}"

    def values(self) -> dict[str, object]:
        """The values that a template may name."""
        return {
            "method": self.method,
            "scheme": self.scheme,
            "host": self.host,
            "port": self.full_port,
            "origin": self.origin,
            "path": _Path(self.path),
        }


class _Path:
    """A path in a template: the whole path, or its segments by index, None beyond the end."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __getitem__(self, index: int) -> str | None:
        return dict(enumerate(segments(self._text))).get(index)

    def __str__(self) -> str:
        return self._text


def segments(path: str) -> tuple[str, ...]:
    """`"/v1/a%2Fb/"` → `("v1", "a/b")`."""
    return tuple([unquote(part) for part in path.split("/") if part])


def key_of(spec: KeySpec | KeyTemplate) -> KeyOf:
    """The function that returns the key of a request, from a wrapper's `key=`."""
    if isinstance(spec, str):
        if spec in _WORDS:
            return _WORDS[spec]
        if not KeyTemplate(spec).fields:
            raise ConfigError("key", spec, "is unknown", _KEY_FIX)
        return _from_template(spec)
    if isinstance(spec, KeyTemplate):
        return _from_template(spec.text)
    if callable(spec):
        return _from_callable(spec)
    raise ConfigError("key", spec, "is neither text nor callable", _KEY_FIX)


def constantly(key: str) -> KeyOf:
    """One key for all requests."""
    return lambda _target, _request: key


_WORDS: dict[str, KeyOf] = {
    "host": lambda target, _: target.host,
    "host+method": lambda target, _: f"{target.host} {target.method}",
    "origin": lambda target, _: target.origin,
    "default": constantly("default"),
}


def _from_template(text: str) -> KeyOf:
    template = KeyTemplate(text, FIELDS)
    return lambda target, _: template(target.values())


def _from_callable(function: Callable[..., str]) -> KeyOf:
    def key(_: Target, request: Any) -> str:
        told = function(request)
        if not isinstance(told, str):
            raise ConfigError("key", told, "is not text, and a callable gave it", "return a str")
        return told

    return key


class Routes(Generic[T]):
    """Finds the value for a URL and everything below it; the longest match wins.

    >>> routes = Routes({"https://api.example.com": "slow", "https://api.example.com/search": "slower"})
    >>> routes.find(Target("GET", "https", "api.example.com", None, "/search/users"))
    'slower'
    >>> routes.find(Target("GET", "https", "api.example.com", 443, "/searching"))
    'slow'
    """

    def __init__(self, places: Mapping[str, T], parse: Callable[[object], Target] | None = None) -> None:
        self._origins: dict[tuple[str, str, int | None], dict[tuple[str, ...], T]] = {}
        for url, place in places.items():
            target = (parse or parsed)(url)
            known = self._origins.setdefault(_origin_of(target), {})
            path = segments(target.path)
            if path in known:
                raise ConfigError("routes", url, "is given twice", "leave one of the two")
            known[path] = place
        for origin, known in self._origins.items():
            self._origins[origin] = dict(sorted(known.items(), key=lambda item: -len(item[0])))

    def find(self, target: Target) -> T | None:
        """The value for the target; None if no route matches."""
        known = self._origins.get(_origin_of(target))
        if known is None:
            return None
        path = segments(target.path)
        return next((place for prefix, place in known.items() if path[: len(prefix)] == prefix), None)


def parsed(url: object) -> Target:
    """The target of a route's URL."""
    if not isinstance(url, str):
        raise ConfigError("routes", url, "is not a URL", _ROUTE_FIX)
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError as error:
        raise ConfigError("routes", url, f"is not a URL ({error})", _ROUTE_FIX) from None
    if parts.scheme not in _PORTS or not host:
        raise ConfigError("routes", url, "has no scheme or no host", _ROUTE_FIX)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError("routes", url, "has more than scheme, host, port and path", _ROUTE_FIX)
    return Target("", parts.scheme, host, port, parts.path)


def _origin_of(target: Target) -> tuple[str, str, int | None]:
    return target.scheme, target.host, target.full_port
