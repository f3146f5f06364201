"""Held keys of parked tasks: when a hold is ended early, those who are parked come back earlier."""

from __future__ import annotations

import time

from shapekit.integrations.celery_parking import Park
from shapekit.reservation import Reservation
from shapekit.shaper import Shaper

__all__ = ["Holds", "group_of"]

LOOK_S = 0.01
"""How long a held key is let alone for each that is held: of one or a few a worker hears before the quarter
of a second has passed by which a hold is ended ahead, and many do not keep it busy."""


def group_of(shaper: Shaper, key: str) -> str:
    """The name of all who are parked under one key."""
    return f"{shaper.name}:{key}"


class Holds:
    """The keys under which a worker has parked something while they were held."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[Shaper, str]] = {}
        self._looked = 0.0

    def note(self, shaper: Shaper, turn: Reservation, park: Park) -> None:
        """A message is about to be parked with this turn, whose key was held when it was last asked about."""
        group = group_of(shaper, turn.key)
        if group not in self._keys and (left_s := shaper.held(key=turn.key)) > 0:
            park.shorten(group, left_s)
            self._keys[group] = shaper, turn.key

    def look(self, park: Park) -> None:
        """See whether holds have been ended."""
        now = time.monotonic()
        if not self._keys or now - self._looked < LOOK_S * len(self._keys):
            return
        self._looked = now
        for group, (shaper, key) in list(self._keys.items()):
            left_s = shaper.held(key=key)
            park.shorten(group, left_s)
            if left_s <= 0:
                del self._keys[group]
