"""The linker: the Lua twins, put together into the scripts that the operations of a program need.

A server runs a script from its first line at every call, and to define a function takes it time even where
nothing calls it. So a script holds the functions that its operations can reach, by name, and no others; and
each class is made with room for its methods, since growing one by one takes longer than the rest.

The files are read once, before the first script is put together. A store does that when an operation is
bound: while a caller waits, it only picks a script.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from shapekit.algorithms.operation import Operation

_NEEDS = "-- needs "
_PIECE = re.compile(
    r"(?:local )?function (?:(\w+)[.:])?(\w+)\((?:.* end|(?:.*\n)+?end)$"
    r"|local (\w+) = (?:setmetatable\()?\{\}(?:, \w+\))?$"
    r"|.+$",
    re.MULTILINE,
)
"""A function at the margin, up to its `end` there; a line that makes a class; any other line."""
_WORD = re.compile(r"\w+")


class Script(NamedTuple):
    """The text of a script, and the name that Redis gives it."""

    text: str
    sha: str


class _Piece(NamedTuple):
    """A function at the margin of a file, or a line between two of them."""

    text: str
    words: frozenset[str]
    function: str
    """The name by which others reach it; empty for a line, which always stays."""
    table: str
    """The class that a method belongs to, or that a line makes."""


class _File(NamedTuple):
    needs: Sequence[str]
    """The twins that it builds on."""
    pieces: Sequence[_Piece]


def script_of(spec: Sequence[Any], operations: Iterable[Operation], mode: str = "one") -> Script:
    """The script that runs these operations of the twin of this spec, and of whatever it is made of."""
    return _script(twins_of(spec), frozenset(operations), mode)


def survey_script(specs: Sequence[Any]) -> str:
    """The text of the script that reads the states of the twins of these specs."""
    return _linked(twins_of(specs), _files()["inspect"].pieces)


def twins_of(spec: Sequence[Any]) -> frozenset[str]:
    """The twins that a spec names: its own, and those of the specs inside."""
    own = frozenset(part for part in spec[:1] if isinstance(part, str))
    return own.union(*(twins_of(part) for part in spec if isinstance(part, list)))


@cache
def _script(names: frozenset[str], operations: frozenset[Operation], mode: str) -> Script:
    named = sorted(operations, key=repr)
    tables = {
        "METHODS": {one: "true" if one.is_look else f'"{one.name}"' for one in named},
        "READS": {one: "true" for one in named if one.is_read},
        "MOST_COST": {one: one.most_cost for one in named if one.most_cost is not None},
    }
    told = [
        f"local {name} = {{{', '.join(f'{one} = {word}' for one, word in entries.items())}}}"
        for name, entries in tables.items()
    ]
    door = [*_cut("\n".join(told)), *_files()["server"].pieces, *_cut(f"return answered({mode})")]
    text = _linked(names, door)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _linked(names: Iterable[str], door: Sequence[_Piece]) -> str:
    """The twins, each after those it builds on, and the door, as far as anything is reached."""
    twins: dict[str, Sequence[_Piece]] = {}

    def add(name: str) -> None:
        if name not in twins:
            for needed in _files()[name].needs:
                add(needed)
            twins[name] = _files()[name].pieces

    for name in sorted(names):
        add(name)
    pieces = [*(piece for twin in twins.values() for piece in twin), *door]
    words: dict[str, set[str]] = {}
    for piece in pieces:
        words.setdefault(piece.function, set()).update(piece.words)
    reached, more = set[str](), {""}
    while more:
        reached |= more
        more = words.keys() & set[str]().union(*(words[function] for function in more)) - reached
    kept = [piece for piece in pieces if piece.function in reached]
    room: dict[str, str] = {}
    for piece in kept:
        if piece.function and piece.table:
            room[piece.table] = f"{room.get(piece.table, '')}{piece.function} = 0, "
    return "\n".join(
        piece.text
        if piece.function or piece.table not in room
        else piece.text.replace("{}", f"{{{room[piece.table]}__index = 0}}", 1)
        for piece in kept
    )


@cache
def _files() -> dict[str, _File]:
    """All twins by their names, and the doors to them."""
    found: dict[str, _File] = {}

    def read(folder: Traversable, path: str = "") -> None:
        for entry in folder.iterdir():
            name, _, ending = entry.name.rpartition(".")
            if entry.is_dir():
                read(entry, f"{path}{entry.name}/")
            elif ending == "lua":
                text = entry.read_text("utf-8")
                needs = text.partition("\n")[0].partition(_NEEDS)[2].split()
                found[path + name] = _File(needs, _cut(text))

    for package in ("shapekit.algorithms", "shapekit.stores.redis"):
        read(files(package))
    return found


def _cut(text: str) -> list[_Piece]:
    """The functions and the lines of a text, without its comments."""
    code = "\n".join(
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")
    )
    return [
        _Piece(match[0], frozenset(_WORD.findall(match[0])), match[2] or "", match[1] or match[3] or "")
        for match in _PIECE.finditer(code)
    ]
