"""Batches: a worker that starts many tasks a second takes their slots several at a time.

A trip to the store for each task is what a shaped task costs a worker most. So the trip for one task also
takes slots for those that will come right behind it, as many as came in the time before. A batch is used
within 10 ms, and within the grace of its tasks: so a hold that is placed meanwhile is noticed as soon as by a
task that has waited. Below 200 slots a second, and for a key whose tasks come one by one or wait in line,
every slot is taken by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from shapekit._adapters.tasks import LEAST_GRACE_S
from shapekit._runtime import forks
from shapekit._runtime.switch import SWITCH
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL_MANY, RESERVE_MANY
from shapekit.integrations.celery.shape import Shaped
from shapekit.rate import SECOND_US
from shapekit.shaper import Reservation, Shaper

__all__ = ["Batches"]

MOST = 8
"""The most slots of a batch: more do not make the share of a trip in each much smaller."""
_KEYS = 256
"""The number of keys at which those without a task in a while are first forgotten."""


class _Slot(NamedTuple):
    """A slot of a batch, and when it comes, on the clock that callers sleep by."""

    comes_us: int
    grant: Grant


class _Batch:
    """The slots that one trip took for one key."""

    __slots__ = ("asked_us", "slots", "used")

    def __init__(self, asked_us: int) -> None:
        self.asked_us = asked_us
        """When the worker asked for them."""
        self.slots: deque[_Slot] = deque()
        """Those that no task has got yet."""
        self.used = 0
        """How many tasks got one that they did not have to wait in line for."""

    def next(self) -> _Slot | None:
        """The next slot. Each goes to one caller only, in whatever thread."""
        try:
            return self.slots.popleft()
        except IndexError:
            return None


class Batches:
    """The batches of one task's messages in one worker; `taken` is called when a trip has left slots over."""

    def __init__(self, shaped: Shaped, taken: Callable[[], object]) -> None:
        self.shaped = shaped
        shaper = self._shaper = shaped.policy.shaper
        core = shaper.core
        self._taken = taken
        self._now_us = core.clock.now_us
        self._life_us = round(min(LEAST_GRACE_S, shaped.grace_s) * SECOND_US)
        self._most = min(MOST, core.queue.slots(self._life_us)) if _is_plain(shaper) else 1
        self._reserve_many = core.store.bind(shaper.name, core.queue, RESERVE_MANY)
        self._cancel_many = core.store.bind(shaper.name, core.queue, CANCEL_MANY)
        self._batches: dict[str, _Batch] = {}
        self._forgets_at = _KEYS

    def take(self, key: str, cost: int) -> tuple[Reservation, float]:
        """A slot or a refusal, and how long until the slot comes; negative if it came a moment ago."""
        if self._most < 2 or cost != 1 or SWITCH.is_off:
            reservation = self._shaper.reserve(key, cost=cost)
            return reservation, reservation.delay
        now_us = self._now_us()
        batch = self._batches.get(key)
        slot = batch.next() if batch is not None and now_us - batch.asked_us < self._life_us else None
        if batch is None or slot is None:
            grant = self._fetched(key, batch, now_us)
            remaining_us = grant.wait_us
        else:
            batch.used += 1
            grant, remaining_us = slot.grant, slot.comes_us - now_us
            if grant.wait_us:
                grant = grant._replace(wait_us=max(0, remaining_us))
        reservation = Reservation(self._shaper.core, key, grant)
        self._shaper.core.reporter.reserved(reservation)
        return reservation, remaining_us / SECOND_US

    def give_back(self, *, idle_only: bool = False) -> bool:
        """Give back the slots that no task has got; if `idle_only`, those that none will get any more.

        Returns whether any are left.
        """
        is_left = False
        for key, batch in list(self._batches.items()):
            if idle_only and self._now_us() - batch.asked_us < 2 * self._life_us:
                is_left = is_left or bool(batch.slots)
                continue
            grants = []
            while (slot := batch.next()) is not None:
                grants.append(slot.grant)
            if grants:
                self._cancel_many(key, grants)
        return is_left

    def _fetched(self, key: str, before: _Batch | None, now_us: int) -> Grant:
        """Take a slot, and those for the tasks behind it."""
        core, behind = self._shaper.core, 0
        core.check(key, 1)
        if before is not None:
            # So many come in the life of a batch, if they go on coming as they did.
            passed_us = max(1, now_us - before.asked_us)
            behind = min(self._most - 1, before.used * self._life_us // passed_us)
        one = forks.fresh_id()
        asked = [(1, None, one), *[(1, self._life_us, one)] * behind]
        grant: Grant
        with core.reporter.watching(key):
            _, (grant, *others) = self._reserve_many(key, asked, (0, 0, one))
        heard_us = self._now_us()
        batch = _Batch(now_us)
        batch.used = int(grant.accepted and not grant.wait_us)
        batch.slots.extend(_Slot(heard_us + other.wait_us, other) for other in others if other.accepted)
        self._keep(key, batch, now_us)
        return grant

    def _keep(self, key: str, batch: _Batch, now_us: int) -> None:
        if len(self._batches) >= self._forgets_at:
            since_us, known = now_us - self._life_us, self._batches.items()
            self._batches = {one: had for one, had in known if had.slots or had.asked_us > since_us}
            self._forgets_at = max(_KEYS, 2 * len(self._batches))
        self._batches[key] = batch
        if batch.slots:
            self._taken()


def _is_plain(shaper: Shaper) -> bool:
    """Whether taking slots earlier than they are needed makes no other task wait long, or be refused.

    A slot that only the pace limits has passed a moment later. A quota or a window remembers it, and a task
    that may not wait is refused for it.
    """
    queue = shaper.core.queue
    is_paced = (
        bool(queue.rates) and queue.pace == "smooth" and not queue.constraints.algorithms and not queue.adapts
    )
    return is_paced and shaper.core.max_wait_us is None and shaper.core.prefetch is None
