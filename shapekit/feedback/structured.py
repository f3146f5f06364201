"""Structured field lists (RFC 9651), as far as they can be read: exact, or not at all.

A list is read into its members, each a value with its parameters. An inner list is a tuple of members.
Numbers become int and float, strings and tokens str, byte sequences bytes, booleans bool, dates int.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from typing import TypeAlias

__all__ = ["Member", "parse_list"]

Bare: TypeAlias = "int | float | str | bytes | bool"
Parameters: TypeAlias = dict[str, Bare]
Member: TypeAlias = "tuple[Bare | tuple[Member, ...], Parameters]"

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
    """It is not a structured field; nothing of it counts."""


def parse_list(text: str) -> list[Member] | None:
    """The members of the list, or None if any of it is malformed or it is longer than 4,096 characters."""
    if len(text) > LONGEST:
        return None
    text = text.strip(" ")
    members: list[Member] = []
    at = 0
    try:
        while at < len(text):
            member, at = _member(text, at)
            members.append(member)
            if at < len(text):
                comma = _COMMA.match(text, at)
                if not comma or comma.end() == len(text):
                    return None
                at = comma.end()
    except _MalformedError:
        return None
    return members


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
    told: str = match[match.lastgroup or 0]
    value: Bare = told
    match match.lastgroup:
        case "integer" | "date":
            value = int(told)
        case "decimal":
            value = float(told)
        case "string":
            value = _ESCAPED.sub(r"\1", told)
        case "bytes":
            value = _decoded(told)
        case "boolean":
            value = told == "1"
        case "display":
            value = _displayed(told)
    return value, match.end()


def _decoded(told: str) -> bytes:
    body = told.rstrip("=")
    try:
        # Padding may be missing, and is then supplied.
        return a2b_base64(body + "=" * (-len(body) % 4), strict_mode=True)
    except Base64Error:
        raise _MalformedError from None


def _displayed(told: str) -> str:
    try:
        return _PERCENT.sub(lambda run: bytes.fromhex(run[0].replace("%", "")).decode(), told)
    except UnicodeDecodeError:
        raise _MalformedError from None


def _skip(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    return match.end() if match else at
