"""Keys: which calls share a limit, from a template or a callable.

A template names values of the call: `"{user_id}"`, `"{account.region}:{path[0]}"`. It is parsed when it is
declared, so a mistake shows at import and not in production. Values are escaped: two different sets of values
never give the same key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from string import Formatter
from typing import Any, TypeAlias

from shapekit.errors import ConfigError

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
                raise ConfigError(
                    "key", text, f"names {field!r:.80}, which the call does not have", f"use one of: {known}"
                )
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
        return "%None" if value is None else str(value).translate(self._escaped)

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
            told = f"cannot read {where:.80} of this call ({error!s:.200})"
            raise ConfigError("key", template, told, _FIX) from error
    return value


def _is_mark(character: str) -> bool:
    return not character.isalnum() and character not in "_%"


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


SCOPE = "%scope="
"""Separates key and scope in a scoped key. No key from a template contains it."""


def scoped(key: str, scope: str) -> str:
    """The key of a scope; differs for each pair, because no key contains the separator.

    >>> scoped("api.github.com", "search")
    'api.github.com%scope=search'
    """
    return f"{key}{SCOPE}{scope}"


def whole_of(key: str) -> str | None:
    """The key that a scoped key belongs to; None for any other key."""
    whole, sign, _ = key.partition(SCOPE)
    return whole if sign else None
