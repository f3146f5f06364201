"""Scripts: the Lua twins, put together into what some operations of one program need.

A server runs a script from its first line at every call, and a function costs it time even where nobody
calls it. So a script holds the functions that its operations can reach, by name, and no others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from shapekit.rate import MAX_COUNT
from shapekit.stores.base import READS

_NEEDS = "-- needs "
_MOST_COST = {
    **dict.fromkeys(("check", "commit", "earliest", "forecast"), "true"),
    **dict.fromkeys(("refund", "debit"), f"{MAX_COUNT}"),
}
"""What a cost is checked against where the program does not do it: a number, or what it can admit."""
_DEFINITION = re.compile(r"(?:local )?function (?:\w+[.:])?(\w+)\(")
_METHOD = re.compile(r"function (\w+)[.:](\w+)\(")
_CLASS = re.compile(r"local (\w+) = (?:setmetatable\()?\{\}(?:, \w+\))?")
_WORD = re.compile(r"\w+")


class Script(NamedTuple):
    """The text of a script, and the name that Redis gives it."""

    text: str
    sha: str


def script_of(spec: list[Any], operations: Iterable[str], mode: str = "one") -> Script:
    """The script that runs these operations of the twin of this spec, and of whatever it is made of."""
    return _script(frozenset(_names(spec)), frozenset(operations), mode)


def _names(spec: Sequence[Any]) -> set[str]:
    """The twins that a spec names: its own, and those of the specs inside."""
    names = {spec[0]} if spec and isinstance(spec[0], str) else set()
    for part in spec:
        if isinstance(part, list):
            names |= _names(part)
    return names


def survey_script(specs: Sequence[list[Any]]) -> str:
    """The text of the script that reads the states of the twins of these specs."""
    return _survey_script(frozenset(_names(specs)))


@cache
def _survey_script(names: frozenset[str]) -> str:
    door = _cut(files("shapekit.stores").joinpath("survey.lua").read_text("utf-8"))
    return "\n".join(_roomy(_reached([*_pieces(names), *door])))


@cache
def _script(names: frozenset[str], operations: frozenset[str], mode: str) -> Script:
    named = sorted(operations - {"look"})
    methods = ", ".join(f'{name} = "{name}"' for name in named)
    reads = ", ".join(f"{name} = true" for name in named if name in READS)
    costs = ", ".join(f"{name} = {_MOST_COST[name]}" for name in named if name in _MOST_COST)
    tables = [
        f"local METHODS = {{{methods}}}",
        f"local READS = {{{reads}}}",
        f"local MOST_COST = {{{costs}}}",
    ]
    text = "\n".join(_roomy(_reached([*_pieces(names), *tables, *_door(), f"return answered({mode})"])))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _reached(pieces: list[str]) -> list[str]:
    """Without the functions that nothing which is left calls by their name."""
    defined = {piece: match[1] for piece in pieces if (match := _DEFINITION.match(piece))}
    kept = [piece for piece in pieces if piece not in defined]
    words = {word for piece in kept for word in _WORD.findall(piece)}
    while more := [piece for piece, name in defined.items() if name in words]:
        for piece in more:
            words.update(_WORD.findall(piece))
            kept.append(piece)
            del defined[piece]
    return [piece for piece in pieces if piece in set(kept)]


def _roomy(pieces: list[str]) -> list[str]:
    """Each class made with room for all its methods: growing one by one takes longer than the rest."""
    methods: dict[str, str] = {}
    for piece in pieces:
        if match := _METHOD.match(piece):
            methods[match[1]] = f"{methods.get(match[1], '')}{match[2]} = 0, "
    return [
        piece.replace("{}", f"{{{methods[match[1]]}__index = 0}}", 1)
        if (match := _CLASS.fullmatch(piece)) and match[1] in methods
        else piece
        for piece in pieces
    ]


def _pieces(names: Iterable[str]) -> list[str]:
    """The twins' files with what they need, each file after those it builds on, cut into functions."""
    pieces: dict[str, list[str]] = {}

    def add(name: str) -> None:
        if name in pieces:
            return
        text = files("shapekit.algorithms").joinpath(f"{name}.lua").read_text("utf-8")
        first = text.partition("\n")[0]
        for needed in first.removeprefix(_NEEDS).split() if first.startswith(_NEEDS) else ():
            add(needed)
        pieces[name] = _cut(text)

    for name in sorted(names):
        add(name)
    return [piece for file in pieces.values() for piece in file]


def _door() -> list[str]:
    return _cut(files("shapekit.stores").joinpath("redis.lua").read_text("utf-8"))


def _cut(text: str) -> list[str]:
    """Each function that stands at the margin, up to its `end` there, and the lines between them."""
    pieces: list[str] = []
    inside = False
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("--"):
            continue
        if inside:
            pieces[-1] += f"\n{line}"
        else:
            pieces.append(line)
            inside = bool(_DEFINITION.match(line)) and not line.endswith(" end")
        inside = inside and line != "end"
    return pieces
