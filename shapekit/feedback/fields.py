"""Parsers for the values of header fields: numbers, durations, dates. A malformed value gives None.

Values are cut before they come here, and every expression is anchored, so that a value of any length costs
the same. Dates have a parser here because the one in the standard library takes the year 0 for 2000 and two
digits for a fixed century, accepts much that is no HTTP-date, and raises OverflowError as well as ValueError.
This one is as fast.

Structured fields (RFC 9651) are parsed exactly, or not at all. A list gives its members, each a value with
its parameters, a dictionary gives them by key; an inner list is a tuple of members. Numbers become int and
float, strings and tokens str, byte sequences bytes, booleans bool, dates int.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar

Bare: TypeAlias = "int | float | str | bytes | bool"
Parameters: TypeAlias = dict[str, Bare]
Member: TypeAlias = "tuple[Bare | tuple[Member, ...], Parameters]"

T = TypeVar("T")

LONGEST = 4_096

_ITEM = re.compile(
    r"""(?P<decimal>-?[0-9]{1,12}\.[0-9]{1,3})
    | (?P<integer>-?[0-9]{1,15})
    | "(?P<string>(?:[ !\#-\[\]-~]|\\["\\])*)"
    | (?P<token>[A-Za-z*][!\#$%&'*+\-.^_`|~:/0-9A-Za-z]*)
    | :(?P<bytes>[A-Za-z0-9+/=]*):
    | \?(?P<boolean>[01])
    | @(?P<date>-?[0-9]{1,15})
    | %"(?P<display>(?:[ !\#$&-~]|%[0-9a-f]{2})*)"
    """,
    re.VERBOSE,
)
_KEY = re.compile(r"[a-z*][a-z0-9_\-.*]*")
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_SPACES = re.compile(" *")
_ESCAPED = re.compile(r"\\(.)")
_PERCENT = re.compile(r"(?:%[0-9a-f]{2})+")


class _MalformedError(ValueError):
    """The text is not a structured field."""


def parse_list(text: str) -> list[Member] | None:
    """The members of the list; None if any part is malformed or the text exceeds 4,096 characters."""
    return _parsed(text, _member)


def parse_dictionary(text: str) -> dict[str, Member] | None:
    """The members of the dictionary by key; of a repeated key the last one. None as for a list."""
    entries = _parsed(text, _entry)
    return None if entries is None else dict(entries)


def _parsed(text: str, part: Callable[[str, int], tuple[T, int]]) -> list[T] | None:
    """The parts between the commas."""
    if len(text) > LONGEST:
        return None
    text = text.strip(" ")
    members: list[T] = []
    at = 0
    try:
        while at < len(text):
            member, at = part(text, at)
            members.append(member)
            if at < len(text):
                comma = _COMMA.match(text, at)
                if not comma or comma.end() == len(text):
                    return None
                at = comma.end()
    except _MalformedError:
        return None
    return members


def _entry(text: str, at: int) -> tuple[tuple[str, Member], int]:
    key = _KEY.match(text, at)
    if not key:
        raise _MalformedError
    at = key.end()
    if text.startswith("=", at):
        member, at = _member(text, at + 1)
        return (key[0], member), at
    parameters, at = _parameters(text, at)
    return (key[0], (True, parameters)), at


def _member(text: str, at: int) -> tuple[Member, int]:
    if not text.startswith("(", at):
        return _item(text, at)
    inner: list[Member] = []
    at = _skip(text, at + 1)
    while not text.startswith(")", at):
        item, at = _item(text, at)
        inner.append(item)
        spaced = _skip(text, at)
        if spaced == at and not text.startswith(")", at):
            raise _MalformedError
        at = spaced
    parameters, at = _parameters(text, at + 1)
    return (tuple(inner), parameters), at


def _item(text: str, at: int) -> tuple[Member, int]:
    value, at = _bare(text, at)
    parameters, at = _parameters(text, at)
    return (value, parameters), at


def _parameters(text: str, at: int) -> tuple[Parameters, int]:
    parameters: Parameters = {}
    while text.startswith(";", at):
        at = _skip(text, at + 1)
        key = _KEY.match(text, at)
        if not key:
            raise _MalformedError
        value: Bare = True
        at = key.end()
        if text.startswith("=", at):
            value, at = _bare(text, at + 1)
        parameters[key[0]] = value
    return parameters, at


def _bare(text: str, at: int) -> tuple[Bare, int]:
    match = _ITEM.match(text, at)
    if not match:
        raise _MalformedError
    raw: str = match[match.lastgroup or 0]
    value: Bare = raw
    match match.lastgroup:
        case "integer" | "date":
            value = int(raw)
        case "decimal":
            value = float(raw)
        case "string":
            value = _ESCAPED.sub(r"\1", raw)
        case "bytes":
            value = _decoded(raw)
        case "boolean":
            value = raw == "1"
        case "display":
            value = _displayed(raw)
    return value, match.end()


def _decoded(text: str) -> bytes:
    body = text.rstrip("=")
    try:
        # Padding may be missing; it is added here.
        return a2b_base64(body + "=" * (-len(body) % 4), strict_mode=True)
    except Base64Error:
        raise _MalformedError from None


def _displayed(text: str) -> str:
    try:
        return _PERCENT.sub(lambda run: bytes.fromhex(run[0].replace("%", "")).decode(), text)
    except UnicodeDecodeError:
        raise _MalformedError from None


def _skip(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    return match.end() if match else at


# The first of several values, without its parameters: proxies repeat headers, and an older draft writes `100,
# 100;w=60`. A time of any number of digits is read, as a longer wait must not become a shorter one; a count
# with more is rejected.
_NUMBER = re.compile(r"[ \t]*([0-9]+(?:\.[0-9]+)?)[ \t]*(?:[,;]|\Z)")
_COUNT = re.compile(r"[ \t]*([0-9]{1,18})(?:\.0{1,6})?[ \t]*(?:[,;]|\Z)")

_LABEL = re.compile(r"[ \t]*([!-+\--~]{1,100})[ \t]*(?:,|\Z)")

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h|d)")
_DURATION = re.compile(rf"[ \t]*((?:{_PART.pattern}){{1,7}})[ \t]*(?:[,;]|\Z)")

_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_TIME = r"([0-9]{2}):([0-9]{2}):([0-9]{2})"
_HOUR, _SIXTIETH = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_IMF_OR_850 = re.compile(
    # Java's RFC_1123_DATE_TIME writes a day below 10 with one digit, and an offset other than UTC.
    r"[ \t]*[a-z]{3,9},[ ]([0-9]{1,2})([ -])([a-z]{3})\2([0-9]{4}|[0-9]{2})[ ]"
    # Python's email.utils writes -0000 or +0000 by default, and servers send that.
    rf"{_TIME}[ ](?:GMT|UTC|([+-]{_HOUR}{_SIXTIETH}))[ \t]*(?:,|\Z)",
    re.ASCII | re.IGNORECASE,
)
_ASCTIME = re.compile(
    rf"[ \t]*[a-z]{{3}}[ ]([a-z]{{3}})[ ]([ 0-9][0-9])[ ]{_TIME}[ ]([0-9]{{4}})[ \t]*(?:,|\Z)",
    re.ASCII | re.IGNORECASE,
)
_RFC3339 = re.compile(
    r"[ \t]*([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]"
    # Java leaves out seconds that are zero, and Jira all seconds.
    r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(\.[0-9]{1,12})?)?"
    # Ruby writes `2026-03-01 12:00:00 UTC` and `… -0700`.
    rf"(?:[Zz]|[ ]UTC|[ ]?([+-]{_HOUR}:?{_SIXTIETH}))[ \t]*(?:[,;]|\Z)"
)

_EPOCH_S = 1e9
"""From here on (2001), a number is an instant in seconds: no window lasts thirty years."""
_EPOCH_MS = 1e11
"""From here on, a number is an instant in milliseconds."""
_BEYOND = 1e14
"""From here on, a number is rejected."""
_HALF_CENTURY = 50
_MOST = 1e18
"""A larger number is cut to this one, which is finite."""


def number(text: str | None) -> float | None:
    """`"1.5"` → 1.5; finite and not negative."""
    match = text and _NUMBER.match(text)
    return min(float(match[1]), _MOST) if match else None


def whole(text: str | None) -> int | None:
    """`"100"` → 100; never negative."""
    match = text and _COUNT.match(text)
    return int(match[1]) if match else None


def label(text: str | None) -> str | None:
    """A word of printable ASCII, of at most 100 characters."""
    match = text and _LABEL.match(text)
    return match[1] if match else None


def duration(text: str | None) -> float | None:
    """`"6m0s"` → 360.0, `"12ms"` → 0.012; a bare number is seconds."""
    match = text and _DURATION.match(text)
    if not match:
        return number(text)
    return min(sum(float(part[1]) * _UNITS_S[part[2]] for part in _PART.finditer(match[1])), _MOST)


def retry_after(text: str | None, now: float) -> float | None:
    """Seconds to wait: the number or duration itself, or the time from the server's own time to a date in any
    form, negative if it has passed. (Zoom sends RFC 3339 in Retry-After.)
    """
    seconds = duration(text)
    if seconds is not None:
        return seconds
    instant = http_date(text, now)
    if instant is None:
        instant = rfc3339(text)
    return None if instant is None else instant - now


def until(text: str | None, now: float) -> float | None:
    """Seconds until a reset whose format is unknown: guessed from its magnitude and form.

    A number below a billion is seconds from now, a larger one an instant.
    """
    seconds = number(text)
    if seconds is None:
        seconds = retry_after(text, now)
    elif seconds >= _EPOCH_MS:
        seconds = seconds / 1_000 - now if seconds < _BEYOND else None
    elif seconds >= _EPOCH_S:
        seconds -= now
    return None if seconds is None else max(0.0, seconds)


def http_date(text: str | None, now: float) -> float | None:
    """Epoch seconds of an HTTP-date in any of its forms; `now` decides the century of a two-digit year."""
    if not text:
        return None
    offset = None
    if match := _IMF_OR_850.match(text):
        day, _, month, year, *time, offset = match.groups()
    elif match := _ASCTIME.match(text):
        month, day, *time, year = match.groups()
    else:
        return None
    full = int(year)
    if len(year) == 2:
        this = 1970 + int(now // 31_556_952)
        full += this - this % 100
        if full > this + _HALF_CENTURY:
            full -= 100
    place, rest = divmod(_MONTHS.find(month.lower()), 3)
    return None if rest else _instant(full, place + 1, int(day), time, offset)


def rfc3339(text: str | None) -> float | None:
    """Epoch seconds of an RFC 3339 instant such as `2026-03-01T12:00:00Z`, with fractions and offsets.

    Also as Ruby writes it, and without seconds.
    """
    match = text and _RFC3339.match(text)
    if not match:
        return None
    year, month, day, *time, fraction, offset = match.groups()
    instant = _instant(int(year), int(month), int(day), time, offset)
    return None if instant is None else instant + float(f"0{fraction or '.0'}")


def _instant(year: int, month: int, day: int, time: Sequence[str | None], offset: str | None) -> float | None:
    """Epoch seconds of a date and a time, on a clock that is ahead of UTC by an offset such as `+0530`."""
    hour, minute, second = (int(part or 0) for part in time)
    leap = second == 60  # a leap second is the one after 59; datetime has none
    try:
        shown = datetime(year, month, day, hour, minute, second - leap, tzinfo=UTC).timestamp() + leap
    except ValueError:
        return None
    if not offset:
        return shown
    return shown - int(f"{offset[0]}1") * (int(offset[1:3]) * 3_600 + int(offset[-2:]) * 60)
