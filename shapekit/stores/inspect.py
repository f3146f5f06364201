"""Sighting: the state of a key in a shared store, as somebody sees it who only looks."""

from __future__ import annotations

from typing import Any, NamedTuple

from shapekit.algorithms.description import Described
from shapekit.errors import ConfigError

__all__ = ["Sighting"]


class Sighting(NamedTuple):
    """A live key, the program that wrote its state, and the time it was seen at."""

    name: str
    """The name of the gate, shaper or policy."""
    part: str
    """The part of a composite, where each has a key of its own; else empty."""
    key: str
    """The key."""
    program: Described | None
    """None where nobody has told what wrote the state; then it cannot be read."""
    state: Any
    """The state; `program` can read it."""
    now_us: int
    """When it was seen, on the clock of the store."""
    skew_us: int
    """How far civil time is ahead."""

    @property
    def shown(self) -> str:
        """`name:key`, or `name:part:key`, as `Store.keys` shows it."""
        return shown(self.name, self.part, self.key)


def plain_text(data: Any) -> str:
    """The text of a name or a key; what is none, because somebody else wrote it, in escapes."""
    if not isinstance(data, bytes):
        return str(data)
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


def plain_bytes(text: str) -> bytes:
    """The bytes of any text that Python can hold, also such as is not proper unicode."""
    return text.encode("utf-8", "surrogatepass")


def shown(name: str, part: str, key: str) -> str:
    """Where a state is, in one text."""
    return ":".join([name, *([part] if part else []), key])


def check_prefix(prefix: object) -> None:
    """ConfigError where keys are asked for by something that is no text."""
    if not isinstance(prefix, str):
        raise ConfigError("prefix", prefix, "is not text", 'pass a str such as "api:"')
