"""Answer: a response as far as limits are concerned, whatever client it came through.

ServerHint: what one answer says about its server's limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from shapekit.feedback import fields
from shapekit.feedback.fields import LONGEST

__all__ = ["Answer", "Headers", "ServerHint"]


class ServerHint(NamedTuple):
    """What an answer says; None where it says nothing. All times are seconds from its arrival."""

    hold_s: float = 0.0
    """How long nobody may leave; 0 if there is nothing to wait for."""
    remaining: int | None = None
    """What is left: of the family or policy that is closest to its end, if there are several."""
    limit: int | None = None
    """How much there is in all."""
    window_s: float | None = None
    """The window that the limit is for."""
    reset_s: float | None = None
    """When there is more again; in the dialects of token buckets, when there is all again."""
    scope: str | None = None
    """What the hint is about, if less than the whole server: a GitHub resource, a Discord bucket."""


SAYS_NOTHING = ServerHint()


REFUSED = 429
UNAVAILABLE = (503, 529)
"""A server that is ill, or (529, of Anthropic and Notion) overloaded: it is obeyed when it says how long."""


class _HasItems(Protocol):
    def items(self) -> Iterable[tuple[Any, Any]]: ...


Headers: TypeAlias = _HasItems | Iterable[tuple[Any, Any]]
"""A mapping, or pairs, of text or bytes, names in any case, repeated or joined by commas."""

_CUT = LONGEST + 1
"""Longer values are cut: a list is then malformed, and the first number or label is what it was, or none."""
_MOST_LINES = 1_000
_RETRY = ("retry-after", "retry-after-ms")


class Answer(NamedTuple):
    """What a dialect is given: the status, the fields by lower-case name, and when it was said."""

    status: int
    """The status code."""
    fields: Mapping[str, str]
    """The header fields by lower-case name."""
    now: float
    """Epoch seconds on the server's clock if it sent a Date, else on ours."""
    retry_s: float | None = None
    """What `retry-after-ms` or `Retry-After` ask for, if that is more than nothing."""

    def whole(self, name: str) -> int | None:
        """The field as a whole number."""
        return fields.whole(self.fields.get(name))

    def number(self, name: str) -> float | None:
        """The field as a number, perhaps with a fraction."""
        return fields.number(self.fields.get(name))

    def label(self, name: str) -> str | None:
        """The field as a short word, fit to be part of a key."""
        return fields.label(self.fields.get(name))


class Wanted(NamedTuple):
    """The lower-case names to pick, in the two forms in which clients hold them."""

    texts: frozenset[str]
    encoded: frozenset[bytes]
    lengths: frozenset[int]


def wanted(fields_read: Iterable[str]) -> Wanted:
    """These, and those that every dialect reads."""
    texts = {*fields_read, *_RETRY, "date"}
    return Wanted(
        frozenset(texts), frozenset(text.encode() for text in texts), frozenset(len(text) for text in texts)
    )


def picked(headers: Headers, wanted: Wanted | None) -> list[tuple[Any, Any]]:
    """The lines that bear a wanted name; all, if no names are given."""
    lines: Any = headers
    if headers.__class__ is not list or len(lines) > _MOST_LINES:
        lines = list(islice(lines.items() if hasattr(lines, "items") else lines, _MOST_LINES))
    if wanted is None or not lines:
        return list(lines)
    texts, encoded, lengths = wanted
    # Two sets: equal text and bytes have one hash, and comparing the two is an error under -bb.
    names: Any = encoded if lines[0][0].__class__ is bytes else texts
    # Most names are of another length, which is cheaper to see; and who knows how long they are.
    return [line for line in lines if len(line[0]) in lengths and line[0].lower() in names]


def says_nothing(lines: list[tuple[Any, Any]]) -> bool:
    """Whether nothing was picked but the date that comes with every answer."""
    return not lines or (len(lines) == 1 and len(lines[0][0]) == len("date"))


def heard(status: int, lines: list[tuple[Any, Any]], received_at: float) -> Answer:
    """The picked lines as an Answer."""
    told: dict[str, str] = {}
    for raw_name, raw_value in lines:
        name, value = _text(raw_name).lower(), _text(raw_value)
        told[name] = f"{told[name]}, {value}"[:_CUT] if name in told else value
    now = fields.http_date(told.get("date"), received_at)
    if now is None:
        now = received_at
    retry = fields.number(told.get("retry-after-ms"))
    retry = retry / 1_000 if retry else fields.retry_after(told.get("retry-after"), now)
    return Answer(status, told, now, retry if retry and retry > 0 else None)


def _text(raw: Any) -> str:
    if isinstance(raw, bytes):
        return raw[:_CUT].decode("latin-1")
    if isinstance(raw, str):
        return raw[:_CUT]
    if isinstance(raw, list | tuple):
        return ", ".join(map(_text, raw[:_MOST_LINES]))[:_CUT]
    return str(raw)[:_CUT]
