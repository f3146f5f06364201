"""Keys: a template or a callable gives each call its key; calls with the same key share a limit.

A template names values of the call: `"{user_id}"`, `"{account.region}:{path[0]}"`. It is parsed when it is
declared, so a mistake shows at import and not in production. Values are escaped: two different sets of values
never give the same key.

Target: where an outgoing request goes, from which its key and its route follow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from string import Formatter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from shapekit.errors import ConfigError

__all__ = ["Target"]


KeySpec: TypeAlias = str | Callable[..., str]

_FIELD = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[\w+\])*")
_STEP = re.compile(r"\.(\w+)|\[(\w+)\]")
_FIX = 'write a template such as "{user_id}" or "{account.id}:{region}"'


class KeyTemplate:
    """A parsed template; called with a mapping of values, it returns the key.

    >>> key = KeyTemplate("{tenant}/{user.name}")
    >>> key.fields
    ('tenant', 'user')
    >>> KeyTemplate("{a}:{b}")({"a": "1:2", "b": "3"}), KeyTemplate("{a}:{b}")({"a": "1", "b": "2:3"})
    ('1%3A2:3', '1:2%3A3')
    """

    __slots__ = ("_escaped", "_parts", "fields", "text")

    def __init__(self, text: str, names: Collection[str] | None = None) -> None:
        self.text = text
        self._parts = tuple(_parsed(text))
        self.fields = tuple(dict.fromkeys(name for _, name, _ in self._parts if name))
        for field in self.fields:
            if names is not None and field not in names:
                known = ", ".join(names) or "none"
                fix = f"use one of: {known}"
                raise ConfigError("key", text, f"names {field!r:.80}, which the call does not have", fix)
        # An escaped value contains none of the template's marks, so a key can be read in only one way.
        marks = {character for literal, _, _ in self._parts for character in literal if _is_mark(character)}
        self._escaped = str.maketrans({mark: _percent(mark) for mark in marks | {"%"}})

    def __call__(self, values: Mapping[str, Any]) -> str:
        return "".join(
            literal if name is None else literal + self._shown(_walked(values[name], steps, self.text))
            for literal, name, steps in self._parts
        )

    def _shown(self, value: object) -> str:
        # Escaping never gives "%None", so a missing value equals no other value.
        if value is None:
            return "%None"
        # A member of a text enum has another `str()` than its value, which is what the key is made of.
        text = str.__str__(value) if isinstance(value, str) else str(value)
        return text.translate(self._escaped)

    def __repr__(self) -> str:
        return f"KeyTemplate({self.text!r})"


_Step: TypeAlias = tuple[str, str]


def _parsed(text: str) -> list[tuple[str, str | None, tuple[_Step, ...]]]:
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigError("key", text, f"is not a template ({error})", _FIX) from None
    parts: list[tuple[str, str | None, tuple[_Step, ...]]] = []
    before = ""
    for literal, field, spec, conversion in pieces:
        before += literal
        if field is None:
            # A doubled brace ends a piece without a field: its text belongs to the next piece.
            continue
        match = _FIELD.fullmatch(field)
        if match is None or spec or conversion:
            raise ConfigError("key", text, f"has a field that cannot be read ({field!r:.80})", _FIX)
        if parts and not any(map(_is_mark, before)):
            raise ConfigError("key", text, "has two fields with no mark such as : or / between them", _FIX)
        name, *_ = re.split(r"[.\[]", field, maxsplit=1)
        parts.append((before, name, tuple(_STEP.findall(field[len(name) :]))))
        before = ""
    if before:
        parts.append((before, None, ()))
    return parts


def _walked(value: Any, steps: tuple[_Step, ...], template: str) -> Any:
    for attribute, item in steps:
        try:
            if attribute:
                value = getattr(value, attribute)
            else:
                value = value[int(item)] if item.isdecimal() else value[item]
        except (AttributeError, LookupError, TypeError) as error:
            where = f".{attribute}" if attribute else f"[{item}]"
            problem = f"cannot read {where:.80} of this call ({error!s:.200})"
            raise ConfigError("key", template, problem, _FIX) from error
    return value


def _is_mark(character: str) -> bool:
    return not character.isalnum() and character not in "_%"


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def text_of(key: object) -> str:
    """A key as plain text; ConfigError if it is not text.

    A member of a text enum gives its value, whatever its `str()` is.

    >>> from enum import Enum
    >>> text_of(Enum("Tenant", {"ACME": "acme"}, type=str).ACME)
    'acme'
    """
    if not isinstance(key, str):
        raise ConfigError("key", key, "is not text", 'pass a str such as "acme", or str(customer.id)')
    return str.__str__(key)


SCOPE = "%scope="
"""Separates key and scope in a scoped key. No other key contains it."""


PART = "%of="
"""Separates a scope from the beginning of a path, or a part of it, for each of which it counts separately."""


def scoped(key: str, scope: str) -> str:
    """The key of a scope; unique for each pair, because no key contains the separator.

    >>> scoped("api.github.com", "search")
    'api.github.com%scope=search'
    """
    return f"{key}{SCOPE}{scope}"


def whole_of(key: str) -> str | None:
    """The key that a scoped key belongs to; None for any other key."""
    whole, sign, _ = key.partition(SCOPE)
    return whole if sign else None


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
_ITEM_OF_PATH = re.compile(r"path\[(\w+)\]")
_PATTERN = re.compile(r"[*{}<>\s]|/:|/.*[\[\]]")
_DEVIATIONS = re.compile("[ß\u1e9e\u03c2\u200c\u200d]")
"""The letters that Python's codec encodes in another way than the clients."""
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
    parts = [part for part in path.split("/") if part]
    if "%" in path:
        from urllib.parse import unquote  # noqa: PLC0415 - slow to load

        parts = [unquote(part) for part in parts]
    return tuple(parts)


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
    for _, field, _, _ in Formatter().parse(text):
        # Any other item would be a missing segment of every request, and so one key for all.
        if (index := _ITEM_OF_PATH.match(field or "")) and not index[1].isdecimal():
            bound = f"names a segment of the path by {index[1]!r:.80}, which is no whole number"
            raise ConfigError("key", text, bound, 'count from 0: "{path[0]}"')
    return lambda target, _: template(target.values())


def _from_callable(function: Callable[..., str]) -> KeyOf:
    def key(_: Target, request: Any) -> str:
        value = function(request)
        if not isinstance(value, str):
            raise ConfigError("key", value, "is not text, and a callable gave it", "return a str")
        return text_of(value)

    return key


class Routes(Generic[T]):
    """Maps URLs, each with everything below it, to values; the longest match wins.

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
    from urllib.parse import urlsplit  # noqa: PLC0415 - slow to load

    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError as error:
        raise ConfigError("routes", url, f"is not a URL ({error})", _ROUTE_FIX) from None
    if parts.scheme not in _PORTS or not host:
        raise ConfigError("routes", url, "has no scheme or no host", _ROUTE_FIX)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError("routes", url, "has more than scheme, host, port and path", _ROUTE_FIX)
    if _DEVIATIONS.search(parts.netloc):
        fix = "write the host as the client sends it, in ASCII, beginning with xn--"
        raise ConfigError("routes", url, "has a letter in its host that has two encodings", fix)
    if _PATTERN.search(parts.netloc + parts.path):
        fix = 'write the beginning of a URL; in its path, write "%2A" for "*" and "%20" for a blank'
        raise ConfigError("routes", url, "is a pattern or has a blank, and would match no request", fix)
    return Target("", parts.scheme, host, port, parts.path)


def _origin_of(target: Target) -> tuple[str, str, int | None]:
    return target.scheme, target.host, target.full_port
