"""Tallies: what has become of calls here, and is told to the store together, about once a second."""

from __future__ import annotations

import threading
from typing import NamedTuple

__all__ = ["Tallies"]

PAUSE_US = 1_000_000
"""How long successes are gathered."""
MOST_KEYS = 1_024
"""Of how many keys; of the one that was quiet for longest, what is not told yet is forgotten."""


class Tally(NamedTuple):
    """Of one key, what is not told yet."""

    told_us: int
    """When something was told."""
    waited: int = 0
    """Successes of calls that had to wait."""
    left_us: int | None = None
    """When the first of them left, or of those that had not to wait; None if there were none."""


class Tallies:
    """Those of one process; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[str, Tally] = {}

    def add(self, key: str, left_us: int, now_us: int, *, waited: bool) -> Tally | None:
        """A call succeeded; what is to be told now, if it is time."""
        with self._lock:
            told_us, before, first_us = self._by_key.pop(key, Tally(now_us))
            first_us = left_us if first_us is None else min(first_us, left_us)
            tally = Tally(told_us, before + waited, first_us)
            is_time = not 0 <= now_us - told_us < PAUSE_US
            if len(self._by_key) >= MOST_KEYS:
                del self._by_key[next(iter(self._by_key))]
            self._by_key[key] = Tally(now_us) if is_time else tally
            return tally if is_time else None

    def take(self, key: str, now_us: int) -> Tally | None:
        """What is not told yet, to be told now; None if that is nothing."""
        with self._lock:
            tally = self._by_key.get(key)
            if tally is None or tally.left_us is None:
                return None
            self._by_key[key] = Tally(now_us)
            return tally
