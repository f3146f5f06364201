"""Rounds: all libraries that offer something, in turns, and the result of each round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from .library import offering, words
from .progress import say
from .tables import Line

Figures: TypeAlias = dict[str, float]


def in_turns(
    offer: str,
    rounds: int,
    offered: Callable[[Any], Iterable[tuple[str, Callable[[], Figures]]]],
) -> list[Line]:
    """A line for each name that `offered(module)` yields, its rounds interleaved with those of all others.

    A library that fails keeps its line, with the reason; if it is ours, the run fails.
    """
    able, lines = offering(offer)
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    failed: dict[tuple[str, str], str] = {}
    for number in range(rounds):
        for library, module in able:
            for name, run in offered(module):
                subject = (library.name, name)
                found.setdefault(subject, {})
                if subject in failed:
                    continue
                say(f"round {number + 1} of {rounds}, {library.name} {name}")
                try:
                    figures = run()
                except Exception as error:
                    if library.name == "shapekit":
                        raise
                    failed[subject] = words(error)
                else:
                    for column, figure in figures.items():
                        found[subject].setdefault(column, []).append(figure)
    return [
        Line(*subject, failed=failed[subject]) if subject in failed else Line(*subject, figures)
        for subject, figures in found.items()
    ] + lines
