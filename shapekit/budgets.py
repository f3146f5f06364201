"""Budgets: how much of each quota is used, looked at now and then while somebody listens.

Whoever takes a turn looks, at most once a second for each key, and tells what has been reached since. That
costs a trip to the store, so nobody looks while nobody listens, or where there is no quota.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.algorithms.usage import QuotaUsage, quotas_of
from shapekit.errors import StoreUnavailableError
from shapekit.events import BudgetReached, Ears
from shapekit.rate import SECOND_US
from shapekit.stores.base import Store

__all__ = ["Budgets"]

PERCENTS = (80, 95)
"""What is told, in percent of the limit."""
LOOK_US = SECOND_US
"""How often a key is looked at."""
MOST_KEYS = 1_024
"""Of how many keys it is known what was told; of one that was forgotten it is told again."""


class _Watched:
    """What is known of one key: when it was looked at, and of each quota its period and how much was told."""

    __slots__ = ("looked_us", "told")

    def __init__(self, looked_us: int) -> None:
        self.looked_us = looked_us
        self.told: dict[int, tuple[float, int]] = {}


class Budgets:
    """The quotas of one shaper, and what of them was told in this process."""

    def __init__(self, name: str, queue: LeakyQueue, store: Store, ears: Ears) -> None:
        self._name = name
        self._queue = queue
        self._ears = ears
        self._clock = store.clock
        self._read = store.bind(name, queue, "look")
        self._aread = store.abind(name, queue, "look")
        self._has_quotas = bool(quotas_of(queue, None, 0, 0))
        self._lock = threading.Lock()
        self._keys: dict[str, _Watched] = {}

    def look(self, key: str) -> None:
        """Tell what a key has reached, if it is time to look. A store that does not answer tells nothing."""
        if self._is_due(key):
            with suppress(StoreUnavailableError):
                self._tell(key, self._read(key))

    async def alook(self, key: str) -> None:
        """`look`, awaitable."""
        if self._is_due(key):
            with suppress(StoreUnavailableError):
                self._tell(key, await self._aread(key))

    def _is_due(self, key: str) -> bool:
        if not self._has_quotas or not self._ears:
            return False
        now = self._clock.now_us()
        with self._lock:
            known = self._keys.get(key)
            if known is None:
                if len(self._keys) >= MOST_KEYS:
                    del self._keys[next(iter(self._keys))]
                self._keys[key] = _Watched(now)
            elif 0 <= now - known.looked_us < LOOK_US:
                return False
            else:
                known.looked_us = now
        return True

    def _tell(self, key: str, looked: tuple[Any, int, int]) -> None:
        for place, usage in enumerate(quotas_of(self._queue, *looked)):
            for percent in self._newly_reached(key, place, usage):
                share = percent / 100
                self._ears.tell(BudgetReached(self._name, key, usage.name, share, usage.used, usage.limit))

    def _newly_reached(self, key: str, place: int, usage: QuotaUsage) -> tuple[int, ...]:
        """The percents that are reached, and were not told of this period yet."""
        reached = tuple(percent for percent in PERCENTS if usage.used * 100 >= percent * usage.limit)
        with self._lock:
            known = self._keys.get(key)
            if known is None:
                return ()
            period, told = known.told.get(place, (usage.resets_at, 0))
            if usage.per.startswith("rolling:"):
                # It has no end: told again is what it fell below meanwhile.
                told = min(told, len(reached))
            elif period != usage.resets_at:
                told = 0
            known.told[place] = (usage.resets_at, max(told, len(reached)))
        return reached[told:]
