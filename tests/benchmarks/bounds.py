"""Bounds: the figures that are committed, and how far each may be exceeded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

BOUNDS = Path(__file__).with_name("bounds.json")
ROOM = {
    **dict.fromkeys(("bytecodes", "calls", "bytes", "bytes sent", "bytes received"), 0.05),
    "% of the floor": 0.40,
}
"""The share by which a figure may grow without a change of its bound. Other figures may not grow at all.

A time as a ratio to another differs from one processor to the next by up to a fifth.
"""


def most(what: str, bound: int) -> int:
    """The largest figure that is let pass."""
    return bound + int(bound * ROOM.get(what, 0.0))


def compared(found: Mapping[str, Mapping[str, int]], bounds: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A sentence for each figure that is too large, and each path that only one of the two has."""
    complaints = [f"{path}: has bounds and is not measured" for path in bounds.keys() - found.keys()]
    for path, figures in found.items():
        known = bounds.get(path, {})
        for what, figure in figures.items():
            if what not in known:
                complaints.append(f"{path}: {what} has no bound")
            elif figure > most(what, known[what]):
                share = f" ({figure / known[what] - 1:+.0%})" if known[what] else ""
                complaints.append(f"{path}: {figure} {what}, bound {known[what]}{share}")
    return sorted(complaints)
