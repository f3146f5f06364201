"""Explore: every state that a small world can get into, by whatever order of events.

A world is a hashable value. `steps` names what can happen next, and what the world is then; `check` raises
AssertionError where a law does not hold, and is called once for every world. A failure shows the shortest way
that leads there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

World = TypeVar("World", bound=Hashable)


class LawBrokenError(AssertionError):
    """A law does not hold; the message has the steps that lead there."""


def explore(
    start: World,
    steps: Callable[[World], Iterable[tuple[str, World]]],
    check: Callable[[World], None],
) -> int:
    """Visit every world that can be reached; returns how many there are."""
    came_by: dict[World, tuple[World, str] | None] = {start: None}
    pending = deque([start])
    while pending:
        world = pending.popleft()
        try:
            check(world)
            following = list(steps(world))
        except AssertionError as error:
            raise LawBrokenError(f"{error}\nafter: {', '.join(_way(came_by, world))}\n{world}") from error
        for event, after in following:
            if after not in came_by:
                came_by[after] = (world, event)
                pending.append(after)
    return len(came_by)


def _way(came_by: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    way: list[str] = []
    while (step := came_by[world]) is not None:
        world, event = step
        way.append(event)
    return way[::-1]
