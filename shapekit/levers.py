"""Levers: what may be done to a key of a shaper beside taking turns on it: hold, resume, reset, and look."""

from __future__ import annotations

from functools import partial
from typing import Any

from shapekit import nonce
from shapekit.algorithms.base import check_cost
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.confirmations import Confirmations
from shapekit.departure import Departures
from shapekit.errors import ConfigError
from shapekit.rate import MAX_COUNT, SECOND_US, Duration, duration_us, whole
from shapekit.reservation import Outlook
from shapekit.stores.base import Store
from shapekit.teller import Teller

__all__ = ["Levers"]

MAX_PLAYED = 1_000_000
"""The most calls that a forecast plays through one by one, where more than a pace binds."""
RESUME_NOTICE_US = 250_000
"""How far ahead a hold is ended, so that every sleeper, who looks more often than this, hears of it."""


class Levers:
    """The base of a shaper: all of it that takes no turns."""

    def __init__(
        self,
        name: str,
        queue: LeakyQueue,
        store: Store,
        confirmations: Confirmations,
        teller: Teller,
        departures: Departures,
    ) -> None:
        self.queue = queue
        self._max_cost = queue.max_cost
        self._teller = teller
        self._departures = departures
        bound = (name, queue)
        changing, achanging = confirmations.changing, confirmations.achanging
        self._hold = changing(store.bind(*bound, "hold"))
        self._ahold = achanging(store.abind(*bound, "hold"))
        self._resume = changing(store.bind(*bound, "resume"))
        self._aresume = achanging(store.abind(*bound, "resume"))
        self._reset = changing(partial(store.reset, *bound))
        self._areset = achanging(partial(store.areset, *bound))
        self._look = store.bind(*bound, "look")
        self._alook = store.abind(*bound, "look")

    # holding

    def hold(self, length: Duration, *, key: str = "default") -> float:
        """Nobody leaves on `key` for `length`, in any process; returns how long it is held now.

        Whoever waits is moved by as much, in order, and the rate goes on from where it stood. A longer
        hold in place stays. A call that waits through the hold stays charged to the quota period or fixed
        window that it was promised, so the one in which it leaves may see its limit and, on top, those who
        were held back.
        """
        length_us = duration_us("length", length)
        with self._teller.watching(_checked_key(key)):
            held_us: int = self._hold(key, length_us, nonce.fresh())
        if held_us == length_us:
            self._teller.held(key, held_us)
        return held_us / SECOND_US

    async def ahold(self, length: Duration, *, key: str = "default") -> float:
        """`hold`, awaitable."""
        length_us = duration_us("length", length)
        with self._teller.watching(_checked_key(key)):
            held_us: int = await self._ahold(key, length_us, nonce.fresh())
        if held_us == length_us:
            self._teller.held(key, held_us)
        return held_us / SECOND_US

    def resume(self, *, key: str = "default") -> float:
        """End a hold a quarter of a second from now; returns how long the key is held still."""
        with self._teller.watching(_checked_key(key)):
            left_us: int = self._resume(key, RESUME_NOTICE_US)
        if left_us == RESUME_NOTICE_US:
            self._teller.resumed(key, left_us)
        return left_us / SECOND_US

    async def aresume(self, *, key: str = "default") -> float:
        """`resume`, awaitable."""
        with self._teller.watching(_checked_key(key)):
            left_us: int = await self._aresume(key, RESUME_NOTICE_US)
        if left_us == RESUME_NOTICE_US:
            self._teller.resumed(key, left_us)
        return left_us / SECOND_US

    # looking

    def held(self, *, key: str = "default") -> float:
        """How long a key is held still, in seconds; 0 if it is not."""
        return self._departures.held_us(_checked_key(key)) / SECOND_US

    async def aheld(self, *, key: str = "default") -> float:
        """`held`, awaitable."""
        return await self._departures.aheld_us(_checked_key(key)) / SECOND_US

    def forecast(self, calls: int = 1, *, key: str = "default", cost: int = 1) -> Outlook:
        """When `calls` more calls will have left, if they came now and nobody else did."""
        self._foreseeable(calls, key, cost)
        with self._teller.watching(key):
            return self._outlook(self._look(key), calls, cost)

    async def aforecast(self, calls: int = 1, *, key: str = "default", cost: int = 1) -> Outlook:
        """`forecast`, awaitable."""
        self._foreseeable(calls, key, cost)
        with self._teller.watching(key):
            return self._outlook(await self._alook(key), calls, cost)

    def reset(self, key: str = "default") -> None:
        """Forget the key: its queue, its hold, its limits' memory. Who waits keeps the promised time."""
        with self._teller.watching(_checked_key(key)):
            self._reset(key)
        self._teller.was_reset(key)

    async def areset(self, key: str = "default") -> None:
        """`reset`, awaitable."""
        with self._teller.watching(_checked_key(key)):
            await self._areset(key)
        self._teller.was_reset(key)

    def _admissible(self, key: str, cost: int) -> None:
        _checked_key(key)
        check_cost(cost, self._max_cost, key, "limit")

    def _foreseeable(self, calls: int, key: str, cost: int) -> None:
        self._admissible(key, cost)
        plain = not self.queue.constraints and self.queue.rates
        whole("calls", calls, most=MAX_COUNT if plain else MAX_PLAYED)

    def _outlook(self, looked: tuple[Any, int, int], calls: int, cost: int) -> Outlook:
        state, now, skew = looked
        first, last = self.queue.outlook(state, now, calls, cost, skew)
        return Outlook(first / SECOND_US, last / SECOND_US)


def _checked_key(key: str) -> str:
    if not isinstance(key, str):
        raise ConfigError("key", key, "is not text", 'pass a str such as "default"')
    return key
