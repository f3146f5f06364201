"""Scopes: which part of a server a request belongs to, as far as its answers have told.

A server may count by parts of its own (GitHub's resources, Discord's buckets), and each of its answers
names the one that it was about. So a hold for one part need not stop the others. Which route belongs to
which part nobody says beforehand: it is learned.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from shapekit.target import Target

__all__ = ["MARK", "Scopes", "scoped"]

MARK = "%scope="
"""What stands between a key and a scope in the key of both. No value in a key's template gives this."""

MOST_PLACES = 2_048
"""Of how many places something is remembered; whose last answer is oldest is forgotten, leaves first."""
MOST_SEGMENTS = 16
"""How much of a path is looked at."""
MOST_SCOPES = 64
"""How many scopes are told apart below one place."""
MOST_HOLDS = 1_024

Place: TypeAlias = tuple[str, ...]
"""A key, a method and the segments of a path, or the first of these."""


def scoped(key: str, scope: str) -> str:
    """The key that is held where a scope of `key` is: another for each pair, for no key contains the mark.

    >>> scoped("api.github.com", "search")
    'api.github.com%scope=search'
    """
    return f"{key}{MARK}{scope}"


class _Node(NamedTuple):
    here: str | None = None
    """Of the last answer at exactly this place."""
    below: frozenset[str] | None = frozenset()
    """All that were named here and below; None if they are too many to be told apart."""


class _Heard(NamedTuple):
    until_us: int
    at_us: int


class Scopes:
    """What one process has learned of the scopes of one policy; for any number of threads.

    A request's scope is that of the last answer at its place (key, method, path). Where there was none,
    the deepest place above it counts of which something is known: if all that was ever named there is one
    scope, that one. If there were several, it cannot be told: it may belong to any of them.
    """

    __slots__ = ("_heard", "_lock", "_nodes", "any_known")

    def __init__(self) -> None:
        self.any_known = False
        """Whether any answer has named a scope yet."""
        self._nodes: OrderedDict[Place, _Node] = OrderedDict()
        self._heard: dict[tuple[str, str], _Heard] = {}
        self._lock = Lock()

    def learn(self, key: str, target: Target, scope: str) -> None:
        """An answer has named the scope of a request."""
        place, is_whole = _place(key, target)
        nodes = self._nodes
        with self._lock:
            # From the leaf to the root, so that no place is ever forgotten before those below it.
            for end in range(len(place), 0, -1):
                above = place[:end]
                here, below = nodes.get(above, _UNKNOWN)
                if is_whole and end == len(place):
                    here = scope
                if below is not None and scope not in below:
                    below = below | {scope} if len(below) < MOST_SCOPES else None
                nodes[above] = _Node(here, below)
                nodes.move_to_end(above)
            while len(nodes) > MOST_PLACES:
                nodes.popitem(last=False)
        self.any_known = True

    def hear(self, key: str, scope: str, until_us: int, now_us: int) -> None:
        """A hold of the scope was placed."""
        with self._lock:
            heard = {place: hold for place, hold in self._heard.items() if hold.until_us > now_us}
            heard.pop((key, scope), None)
            if len(heard) >= MOST_HOLDS:
                del heard[next(iter(heard))]  # the one that was heard of first
            heard[key, scope] = _Heard(until_us, now_us)
            self._heard = heard

    def find(self, key: str, target: Target, now_us: int) -> tuple[str, ...]:
        """The scopes to wait for: the request's own; if it cannot be told, those heard to be held."""
        place, is_whole = _place(key, target)
        node = self._nodes.get(place, _UNKNOWN)
        if is_whole and node.here is not None:
            return (node.here,)
        end = len(place)
        while not node.below and node.below is not None and end > 1:
            end -= 1
            node = self._nodes.get(place[:end], _UNKNOWN)
        below = node.below
        if below is not None and len(below) == 1:
            return tuple(below)
        return tuple(
            [
                scope
                for (of, scope), hold in self._heard.items()
                if of == key and hold.until_us > now_us and (not below or scope in below)
            ]
        )

    def heard_until_us(self, key: str, scope: str, since_us: int) -> int:
        """Until when a hold lasts that was placed here since then; 0 if none was."""
        hold = self._heard.get((key, scope))
        return hold.until_us if hold is not None and hold.at_us >= since_us else 0


_UNKNOWN = _Node()


def _place(key: str, target: Target) -> tuple[Place, bool]:
    from shapekit.target import segments  # noqa: PLC0415 - only who hears of scopes loads what reads URLs

    path = segments(target.path)
    return (key, target.method, *path[:MOST_SEGMENTS]), len(path) <= MOST_SEGMENTS
