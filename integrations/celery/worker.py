"""The worker side: what happens to messages of shaped tasks between the broker and the pool.

Holds: the held keys of parked tasks. If a hold is ended early, its tasks come back earlier.

A worker asks about each held key as rarely as a process whose calls sleep there, and moves the parked
messages only when the end of the hold has changed.

Batches: a worker that starts many tasks a second takes their slots several at a time.

The trip to the store is the greatest cost of a shaped task in a worker. So the trip for one task also takes
slots for the tasks right behind it, as many as came in the time before. A batch is used within 10 ms, and
within the grace of its tasks: so they notice a hold that is placed meanwhile as soon as a task that has
waited does. Below 200 slots a second, and for a key whose tasks come one by one or wait in line, every slot
is taken by itself.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple
from zlib import crc32

from celery import bootsteps
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import InvalidTaskError
from celery.utils import timer2
from celery.worker import state
from celery.worker.strategy import default
from kombu.asynchronous.timer import Timer as LoopTimer
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.serialization import registry
from kombu.utils.functional import maybe_list

from shapekit._adapters.tasks import LEAST_GRACE_S, check_shared, give_back
from shapekit._queue.moving import pause_us
from shapekit._runtime import process
from shapekit._runtime.drivers import run
from shapekit._runtime.process import SWITCH
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL_MANY, RESERVE_MANY
from shapekit.errors import RateLimitedError, StoreUnavailableError
from shapekit.integrations.celery import (
    AHEAD_HEADER,
    SLOT_HEADER,
    Settings,
    Shaped,
    SlotHeader,
    attach_all,
    attempt_of,
    version_of,
)
from shapekit.integrations.celery.parking import GONE, LEAST_NEWS_S, MOST_PAUSE_S, Park, Taker, park_of
from shapekit.rate import SECOND_US
from shapekit.shaper import Reservation, Shaper, received

__all__ = ["Batches", "Holds", "ShapingStep", "group_of", "strategy"]


def group_of(shaper: Shaper, key: str) -> str:
    """The name of the group of messages that are parked under one key."""
    return f"{shaper.name}:{key}"


class _Held(NamedTuple):
    """One held key: when its hold ends, when that was learned, and when to ask again."""

    shaper: Shaper
    key: str
    ends: float
    since: float
    asks: float


class Holds:
    """The held keys under which a worker has parked messages."""

    def __init__(self) -> None:
        self._keys: dict[str, _Held] = {}

    def note(self, shaper: Shaper, reservation: Reservation, park: Park) -> None:
        """Note the key of a message about to be parked, if the key is held."""
        group = group_of(shaper, reservation.key)
        if group not in self._keys and (left_s := shaper.held(key=reservation.key)) > 0:
            park.shorten(group, left_s)
            now = time.monotonic()
            self._keys[group] = _held(shaper, reservation.key, left_s, now, now)

    def look(self, park: Park) -> None:
        """Ask about the keys that are due, and report holds that end at another time."""
        for group, known in list(self._keys.items()):
            now = time.monotonic()
            if now < known.asks:
                continue
            left_s = known.shaper.held(key=known.key)
            is_news = left_s <= 0 or abs(now + left_s - known.ends) >= LEAST_NEWS_S
            if is_news:
                park.shorten(group, left_s)
            if left_s <= 0:
                del self._keys[group]
            else:
                since = now if is_news else known.since
                self._keys[group] = _held(known.shaper, known.key, left_s, since, now)

    @property
    def next_s(self) -> float:
        """How long until the next key is due."""
        return min([held.asks for held in self._keys.values()], default=float("inf")) - time.monotonic()


class _Noted(NamedTuple):
    """A key under which messages may be parked, and the version of its limits when that was noted."""

    shaper: Shaper
    version: str
    is_told: bool
    """Whether messages that were parked under older limits have been brought back."""


class Changes:
    """The keys of the messages that a worker has parked or got back, with the version of the limits that
    their slots are from: if operators change the limits, the messages are brought back.
    """

    def __init__(self) -> None:
        self._keys: dict[str, _Noted] = {}
        self._again: dict[str, str] = {}
        """Keys whose messages are brought back once more, since some may have been parked meanwhile."""
        self._looked_at = 0.0

    def note(self, shaper: Shaper, key: str, park: Park, parked: str | None) -> None:
        """Note the key of a message that is about to be parked, or is back, with the version of the limits
        that its slot is from; if those are older, others may have been parked under them, too.
        """
        group, version = group_of(shaper, key), version_of(shaper.core)
        known, is_older = self._keys.get(group), parked != version
        if known is not None and (known.is_told or not is_older):
            return
        if known is None:
            process.make_room(self._keys, MOST_CHANGING)
        if is_older and version:
            self._hasten(park, group, version)
        self._keys[group] = _Noted(shaper, version, is_older)

    def look(self, park: Park) -> None:
        """Bring back the messages of keys whose limits were changed."""
        if (now := time.monotonic()) < self._looked_at + IDLE_S or not self._keys:
            return
        self._looked_at = now
        for group, version in list(self._again.items()):
            park.hasten(group, f"{version} again")
            del self._again[group]
        for shaper in {noted.shaper.name: noted.shaper for noted in self._keys.values()}.values():
            shaper.core.store.read_overrides(shaper.name)
        for group, noted in list(self._keys.items()):
            if (version := version_of(noted.shaper.core)) != noted.version:
                self._hasten(park, group, version)
                self._keys[group] = _Noted(noted.shaper, version, is_told=True)

    def _hasten(self, park: Park, group: str, version: str) -> None:
        park.hasten(group, version)
        self._again[group] = version


def _held(shaper: Shaper, key: str, left_s: float, since: float, now: float) -> _Held:
    pause_s = pause_us(round(left_s * SECOND_US), round((now - since) * SECOND_US)) / SECOND_US
    return _Held(shaper, key, now + left_s, since, now + pause_s)


MOST_SLOTS = 8
"""The most slots of a batch: with more, the share of the trip per slot hardly gets smaller."""
_KEYS = 256
"""How many keys there are when keys without recent tasks are first forgotten."""


class _Slot(NamedTuple):
    """A slot of a batch, and when it comes, on the clock that callers sleep by."""

    comes_us: int
    grant: Grant


class _Batch:
    """The slots that one trip took for one key."""

    __slots__ = ("asked_us", "slots", "used")

    def __init__(self, asked_us: int) -> None:
        self.asked_us = asked_us
        """When the worker asked for the slots."""
        self.slots: deque[_Slot] = deque()
        """The slots that no task has yet."""
        self.used = 0
        """How many tasks got a slot that they did not have to wait in line for."""

    def next(self) -> _Slot | None:
        """The next slot. Each goes to only one caller; thread-safe."""
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
        self._most = min(MOST_SLOTS, core.queue.slots(self._life_us)) if _is_plain(shaper) else 1
        self._reserve_many = core.store.bind(shaper.name, core.queue, RESERVE_MANY)
        self._cancel_many = core.store.bind(shaper.name, core.queue, CANCEL_MANY)
        self._batches: dict[str, _Batch] = {}
        self._forgets_at = _KEYS

    def take(self, key: str, cost: int) -> tuple[Reservation, float]:
        """A slot or a refusal, and how long until the slot comes; negative if it has just come."""
        if self._most < 2 or cost != 1 or SWITCH.offs:
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
        """Give back the slots that no task has; if `idle_only`, only those that are too old to be used.

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
            # As many tasks as will come in the life of a batch, at the same pace as before.
            passed_us = max(1, now_us - before.asked_us)
            behind = min(self._most - 1, before.used * self._life_us // passed_us)
        one = process.fresh_id()
        calls = [(1, None, one), *[(1, self._life_us, one)] * behind]
        grant: Grant
        with core.reporter.watching(key):
            _, (grant, *others) = self._reserve_many(key, calls, (0, 0, one))
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
    """Whether slots can be taken early without making another task wait long or be refused.

    Under a pace alone, an unused slot has passed a moment later. A quota or a window goes on counting it, and
    a task that may not wait is refused because of it.
    """
    queue = shaper.core.queue
    is_paced = (
        bool(queue.rates) and queue.pace == "smooth" and not queue.constraints.algorithms and not queue.adapts
    )
    return is_paced and shaper.core.max_wait_us is None and shaper.core.prefetch is None


log = logging.getLogger("shapekit.celery")

AGAIN_S = 1.0
"""How long after a server could not be reached to try again."""
REST = 4
"""An unreachable store is left alone for this many times as long as its last failure took, so that a worker
that it blocks still has time for other work.
"""
AHEAD = 0.8
"""How long before its slot a parked message comes back, as a share of the longest wait in a worker."""
KEPT = 0.9
"""The part of a queue's known delay that is kept after a message that waited there for less."""
LOOKS = 4
"""How often a worker polls for due messages within that time, at most."""
IDLE_S = 1.0
"""How often a worker polls without expecting messages: other workers may have died or have no room."""
LEAST_LOOK_S = 0.02
SWEEP_S = 0.05
"""How often a worker gives back slots of batches that no task has come for."""
MOST_CHANGING = 1_000
"""For how many keys a worker watches whether their limits are changed."""
MOST_AT_ONCE = 200
"""How many messages one poll brings back."""


def strategy(task: Any, app: Any, consumer: Any, **_: Any) -> Callable[..., Any]:
    """Returns the handler for messages of a shaped task in a worker: `Task.Strategy`."""
    handle: Callable[..., Any] = default(task, app, consumer)
    if not task.shaped.policy.enforce:
        return handle  # the pool measures it
    buffer: MessageBuffer = consumer.shapekit
    batches = buffer.batches_of(task.shaped)

    def received_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        if body is not None:
            # A message of protocol 1 has no headers for a slot, so its task waits in the pool.
            handle(message, body, ack, reject, callbacks)
            return
        start = partial(handle, message, None, ack, reject, callbacks)
        refuse = partial(reject, log, consumer.connection_errors)
        buffer.receive(Delivery(batches, message, refuse, start))

    return received_message


class ShapingStep(bootsteps.StartStopStep):
    """Opens the buffer when a worker is connected, and closes it when the connection is lost or the worker
    ends.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        attach_all(parent.app)
        parent.shapekit = MessageBuffer(parent)
        super().__init__(parent, **kwargs)

    def start(self, parent: Any) -> None:
        """Open the buffer on a new connection."""
        parent.shapekit.open()

    def stop(self, parent: Any) -> None:
        """Close the buffer; the broker delivers unacknowledged messages again."""
        parent.shapekit.close()


def _is_revoked_by_stamp(headers: Any) -> bool:
    """Whether `revoke_by_stamped_headers` named one of the stamps of a message."""
    stamps = headers.get("stamps") or {}
    return any(
        stamp in maybe_list(state.revoked_stamps.get(name) or ())
        for name in headers.get("stamped_headers") or ()
        for stamp in maybe_list(stamps.get(name)) or ()
    )


def _is_sent_again_by_sqs(info: Any) -> bool:
    """Whether SQS has delivered a message before: it sets no flag, and counts the deliveries."""
    attributes = info.get("sqs_message", {}).get("Attributes", {})
    return int(attributes.get("ApproximateReceiveCount", 1)) > 1


class Delivery:
    """A delivered message."""

    def __init__(self, batches: Batches, message: Any, reject: Any, start: Callable[[], Any]) -> None:
        self._batches = batches
        self.shaped = shaped = batches.shaped
        self.message = message
        self._reject = reject
        self.start = start
        """Hands the message to the pool, or drops it if it was revoked or has expired."""
        self.reservation: Reservation | None = None
        self.brings_slot = False
        """Whether the message carries its slot."""
        self.has_given_up = False
        """Whether the slot was given back because the task would have expired before it."""
        self.version: str | None = None
        """The version of the limits under which it was sent or parked."""
        self.has_moved = False
        """Whether it missed its slot and got the next one, which has to be used now."""
        self.ahead_s: float | None = None
        """How long before its slot a parked message went to the end of its queue, if it did."""
        self.queued_s: float | None = None
        """How long it waited in its queue behind other messages, if that is known."""
        slot_header = SlotHeader.of(message.headers)
        if slot_header is None:
            return
        headers, info = message.headers, message.delivery_info
        again = headers.get("redelivered") or info.get("redelivered") or _is_sent_again_by_sqs(info)
        if slot_header.was_redelivered:
            headers["redelivered"] = info["redelivered"] = True
        if slot_header.reservation is not None:
            headers["eta"] = None  # the eta is for workers without shapekit
            # The worker that had the message before may have used the slot, or may still use it. In-memory
            # and file brokers return the very headers that the message had on its way into the pool.
            if not again and slot_header.slot is None:
                self.reservation = received(shaped.policy.shaper.core, slot_header.reservation)
                self.brings_slot, self.version = True, slot_header.version
                ahead_s = headers.get(AHEAD_HEADER)
                self.ahead_s = ahead_s if isinstance(ahead_s, float) else None

    @property
    def name(self) -> str:
        """The identity of this attempt at the task."""
        return attempt_of(self.message.headers)

    @property
    def queue(self) -> str | None:
        """The queue that it came from, if the broker tells."""
        queue: str | None = self.message.delivery_info.get("queue")
        return queue

    @property
    def is_over(self) -> bool:
        """Whether the task was revoked or has expired."""
        headers = self.message.headers
        return (
            headers["id"] in state.revoked
            or _is_revoked_by_stamp(headers)
            or (_seconds_to(headers.get("expires")) or 1.0) <= 0
        )

    @property
    def early_s(self) -> float:
        """How long until the task's own eta."""
        return _seconds_to(self.message.headers.get("eta")) or 0.0

    def take_slot(self) -> float:
        """Take a slot; returns how long until it comes."""
        args, kwargs, _ = self.message.payload
        admission = self.shaped.admission_of(self.message.headers, args, kwargs)
        reservation, remaining_s = self._batches.take(admission.key, admission.cost)
        if not reservation:
            run(reservation.core.leave, reservation)
        self.reservation, self.brings_slot, self.has_given_up = reservation, False, False
        self.message.headers["eta"] = None  # it has passed
        return remaining_s

    def remaining(self) -> float:
        """How long until the slot comes; takes another one if there is none, or it passed too long ago."""
        if self.reservation is not None and not self.has_given_up:
            shaper = self.shaped.policy.shaper
            coming = run(shaper.core.coming, self.reservation, self.shaped.grace_s)
            if coming is not None:
                self.reservation, self.has_moved = coming.reservation, coming.has_moved
                self._note_queued(coming.remaining_s)
                return coming.remaining_s
            if self.ahead_s is not None:
                self._note_queued(run(shaper.core.remaining, self.reservation))
            # Unused, but a quota or a window would go on counting it.
            shaper.settle(self.reservation, 0)
        return self.take_slot()

    def _note_queued(self, remaining_s: float) -> None:
        # If more time is left than before, the slot has moved.
        if self.ahead_s is not None and remaining_s <= self.ahead_s:
            self.queued_s = self.ahead_s - remaining_s

    def before_it_expires(self, remaining_s: float) -> float:
        """How long to wait. If the task expires before its slot, the slot is given back, so that no other
        task waits behind it; the task stays, because an earlier slot may become free before it expires.
        """
        expires_s = _seconds_to(self.message.headers.get("expires"))
        if self.reservation is None or expires_s is None or remaining_s <= max(0.0, expires_s):
            return remaining_s
        self.has_given_up = self.give_back()
        return max(LEAST_LOOK_S, expires_s)

    def give_back(self) -> bool:
        """Give the slot back, even if it has passed; False if the store is gone, so that the slot is lost."""
        return self.reservation is None or run(give_back, self.reservation)

    def go(self, remaining_s: float, *, is_for_all: bool) -> None:
        """Hand the message to the pool, now that its slot has come or is next."""
        if self.reservation is not None:
            slot_header = SlotHeader.travelling(self.message.headers, self.reservation)
            slot = time.monotonic() + remaining_s
            serializer = registry.type_to_name.get(self.message.content_type)
            known: dict[str, Any] = {"serializer": serializer, "is_for_all": is_for_all, "queue": self.queue}
            self._carry(slot_header._replace(slot=slot, **known))
        self.start()

    def refuse(self, error: RateLimitedError) -> None:
        """Reject the message, or let its task fail in the pool."""
        if self.shaped.on_reject == "reject":
            log.error("task %s is rejected: %s", self.name, error)
            self._reject(requeue=False)
            return
        self._carry(SlotHeader.refused(self.message.headers, error))
        self.start()

    def park(self, park: Park, holds: Holds, changes: Changes, remaining_s: float) -> None:
        """Park the message with its slot, if it has one.

        If this fails, the message may be parked nevertheless: the slot is left to that copy.
        """
        reservation, body = self.reservation, self.message.body
        # Two messages may have the same id in Celery; only a second delivery also has the same body.
        name = f"{self.name}:{crc32(body.encode() if isinstance(body, str) else body):x}"
        if reservation is not None:
            shaper = self.shaped.policy.shaper
            if reservation.grant.held or self.brings_slot:
                holds.note(shaper, reservation, park)
            changes.note(shaper, reservation.key, park, version_of(shaper.core))
            name = f"{group_of(shaper, reservation.key)}\n{name}"
            slot_header = SlotHeader.travelling(self.message.headers, reservation)
            self._carry(slot_header._replace(reservation=None) if self.has_given_up else slot_header)
        self.reservation = None
        is_new = park.put(name, remaining_s, self.message)
        self.reservation = reservation
        if not is_new and not self.brings_slot:
            # A duplicate delivery whose first copy is parked already, with a slot.
            self.give_back()

    def _carry(self, slot_header: SlotHeader) -> None:
        self.message.headers[SLOT_HEADER] = slot_header.text()


class PromptTimer(timer2.Timer):
    """A timer thread that wakes up if an entry comes that is earlier than the one it sleeps for.

    Celery's own timer sleeps on for up to a second, so that on brokers without an event loop slots would be
    missed.
    """

    def _next_entry(self) -> float | None:
        with self.not_empty:
            delay, entry = next(self.scheduler)
            if entry is None:
                self.not_empty.wait(delay)
                return None
        self.schedule.apply_entry(entry)
        return None


class Alarms:
    """Schedules calls through a single entry in the timer of kombu's event loop.

    After ten entries in a row, that loop sleeps for a second, even if more are due: after a stall of half a
    second, a worker at 20/s would miss its slots for one and a half seconds.
    """

    def __init__(self, timer: Any) -> None:
        self._timer = timer
        self._lock = threading.Lock()
        self._due: list[list[Any]] = []
        """A heap of [instant, number, callback]; the callback is None if it was cancelled."""
        self._numbers = count()
        self._entry: Any = None
        self._entry_at = 0.0

    def call_after(self, length_s: float, call: Callable[[], object]) -> list[Any]:
        """Schedule a call; returns an alarm that can be cancelled."""
        alarm = [time.monotonic() + length_s, next(self._numbers), call]
        with self._lock:
            heappush(self._due, alarm)
            self._arm()
        return alarm

    def cancel(self, alarm: list[Any]) -> None:
        """Cancel an alarm."""
        alarm[2] = None

    def _arm(self) -> None:
        while self._due and self._due[0][2] is None:
            heappop(self._due)
        # If a new connection is lost at once, Celery cancels the entries that were made while it connected.
        is_armed = self._entry is not None and not self._entry.canceled
        if not self._due or (is_armed and self._entry_at <= self._due[0][0]):
            return
        if is_armed:
            self._timer.cancel(self._entry)
        self._entry_at = self._due[0][0]
        self._entry = self._timer.call_after(max(0.0, self._entry_at - time.monotonic()), self._woken)

    def ring(self) -> None:
        """Make the calls that are due."""
        while (call := self._next()) is not None:
            call()

    def _woken(self) -> None:
        try:
            self.ring()
        finally:
            with self._lock:
                self._entry = None
                self._arm()

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            while self._due and self._due[0][0] <= time.monotonic():
                call: Callable[[], object] | None = heappop(self._due)[2]
                if call is not None:
                    return call
        return None


def timer_of(consumer: Any) -> Any:
    """A timer that wakes messages on time: the worker's own, unless that oversleeps."""
    timer = consumer.timer
    if type(timer) is timer2.Timer:
        return PromptTimer()
    # The timers of green pools run their entries concurrently.
    return Alarms(timer) if type(timer) is LoopTimer else timer


class MessageBuffer:
    """Holds the messages whose slots are near, and parks those whose slots are far away.

    A waiting message is not acknowledged, and raises the worker's prefetch limit, so that it keeps no other
    task from coming. On a broker without an event loop, messages wake up in another thread.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._alarms = timer_of(consumer)
        self._settings = Settings(consumer.app)
        self._longest_s = min(self._settings.block_below_s, self._settings.max_eta_s)
        self._gone = (*GONE, *consumer.connection_errors, *consumer.channel_errors)
        self._park: Park
        self._taker = Taker()
        self._holds, self._changes = Holds(), Changes()
        self._fanouts: set[str] = set()
        self._lock = threading.Lock()
        self._waiting: dict[Delivery, tuple[Any, bool]] = {}
        self._crowd = math.inf
        """As many waiting messages keep all others from coming, where the prefetch limit cannot be raised;
        infinite once that has been told.
        """
        self._queued_s: dict[str, float] = {}
        """How long the last message that came back waited in each queue behind others. The next ones come
        back that much earlier; else they would miss their slots again and again.
        """
        self._left: list[str] = []
        self._look: Any = None
        self._looks_at = 0.0
        self._looking = threading.Lock()
        """Allows one poll at a time, since a second one gets again what the first has not handled. It could
        run in a green pool, or between two messages of the first.
        """
        self._is_open = False
        self._rests_until = 0.0
        self._batches: list[Batches] = []
        self._is_sweeping = False

    def batches_of(self, shaped: Shaped) -> Batches:
        """The batches for the messages of a task, for as long as the connection lasts."""
        batches = Batches(shaped, self._sweep_soon)
        self._batches.append(batches)
        return batches

    def open(self) -> None:
        """Start polling for parked messages."""
        consumer = self._consumer
        shaped = [task.shaped for task in consumer.app.tasks.values() if hasattr(task, "shaped")]
        for one in shaped:
            check_shared(one.policy)
        if shaped:
            exchanges = [queue.exchange for queue in consumer.task_consumer.queues]
            self._fanouts = {exchange.name for exchange in exchanges if exchange.type == "fanout"}
            # In a solo pool, tasks run in this very thread, and would keep messages from coming back to any
            # worker. Calling `bool` does nothing.
            meanwhile = bool if isinstance(consumer.pool, SoloPool) else self._ring
            self._park = park_of(consumer.app, consumer.task_consumer, self._taker, meanwhile)
            self._park.take_up(self._left)
            self._left = []
            # Other brokers' limits are kombu's own.
            is_amqp = consumer.connection.transport.driver_type == "amqp"
            if is_amqp and not getattr(consumer, "qos_global", True):
                self._crowd = consumer.initial_prefetch_count or math.inf
            self._is_open = True
            self._look_in(0.0)

    def close(self) -> None:
        """Drop all waiting messages: the broker delivers them again, and they take other slots."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            is_open, self._is_open, self._is_sweeping = self._is_open, False, False
            if self._look is not None:
                self._alarms.cancel(self._look)
            self._look = None
        self._left = [delivery.message.delivery_tag for delivery in waiting]
        for entry, _ in waiting.values():
            self._alarms.cancel(entry)
        if is_open:
            with self._looking:
                self._park.close()
        batches, self._batches = self._batches, []
        for delivery in waiting:
            if not delivery.give_back():
                return  # the store will not answer for the other messages either
        _give_back(batches)

    def receive(self, delivery: Delivery) -> None:
        """Handle a message from the broker, and wake the waiting ones that are due: many messages that arrive
        together take longer than a slot, and waiting ones would miss their slots meanwhile.
        """
        self._look_at(delivery)
        if delivery.queued_s is not None and delivery.queue is not None:
            # Forget the delay slowly: waiting here costs nothing, but a missed slot is lost.
            queued_s = max(delivery.queued_s, KEPT * self._queued_s.get(delivery.queue, 0.0))
            self._queued_s[delivery.queue] = min(queued_s, self._settings.max_eta_s - self._longest_s * AHEAD)
        self._ring(self._gone)

    def _ring(self, but: tuple[type[BaseException], ...] = ()) -> None:
        """Wake the messages that are due. Errors other than `but` are logged, as the event loop would do."""
        if not isinstance(self._alarms, Alarms):
            return  # other timers have their own threads
        try:
            self._alarms.ring()
        except but:
            raise
        except Exception:
            log.exception("a message that was due could not be started")

    def _look_at(self, delivery: Delivery) -> None:
        if _is_stopping():
            # A task started now would run but never be acknowledged, so it would run again elsewhere; and its
            # process would wait for half a minute until its result is read.
            self._wait(delivery, AGAIN_S)
        elif delivery.is_over:
            delivery.give_back()
            delivery.start()
        elif delivery.reservation is None and delivery.early_s > 0:
            self._settle(delivery, delivery.early_s)
        else:
            self._go_on(delivery)

    def _go_on(self, delivery: Delivery) -> None:
        """Find out when the slot of a message comes."""
        start = time.monotonic()
        if start < self._rests_until:
            self._wait(delivery, self._rests_until - start)
            return
        try:
            remaining_s = delivery.remaining()
        except RateLimitedError as error:
            delivery.refuse(error)
        except StoreUnavailableError as error:
            end = time.monotonic()
            rest_s = max(AGAIN_S, REST * (end - start))
            log.warning("shaped tasks wait %.1f s for the store: %s", rest_s, error)
            self._rests_until = end + rest_s
            self._wait(delivery, rest_s)
        except Exception:
            # The arguments give no valid key or cost: the task raises that error in the pool.
            log.debug("task %s goes to the pool as it is", delivery.name, exc_info=True)
            delivery.start()
        else:
            self._settle(delivery, remaining_s)

    def _settle(self, delivery: Delivery, remaining_s: float) -> None:
        """Start a message, let it wait here, or park it."""
        self._note_back(delivery)
        if not delivery.has_moved:
            remaining_s = delivery.before_it_expires(remaining_s)
        if remaining_s <= 0 or delivery.has_moved:
            # A worker that is late with many messages would be late again after another wait here.
            delivery.go(remaining_s, is_for_all=self._is_for_all(delivery))
        elif self._stays(delivery, remaining_s):
            self._wait(delivery, remaining_s)
        else:
            try:
                delivery.park(self._park, self._holds, self._changes, remaining_s)
                self._look_in(remaining_s - self._ahead_s)
            except self._gone as error:
                log.warning("task %s could not be parked: %s", delivery.name, error)
                self._wait(delivery, min(remaining_s, AGAIN_S))

    def _note_back(self, delivery: Delivery) -> None:
        """Note a message that was parked: others of its key may have slots from before a change of limits."""
        if delivery.brings_slot and delivery.reservation is not None:
            shaper = delivery.shaped.policy.shaper
            try:
                self._changes.note(shaper, delivery.reservation.key, self._park, delivery.version)
            except self._gone as error:
                log.info("other parked tasks cannot be brought back: %s", error)

    def _stays(self, delivery: Delivery, remaining_s: float) -> bool:
        """Whether a message waits here: its slot is near, or every worker gets a copy of it."""
        # A message that came back early because its queue is long might come too late the next time.
        is_near = remaining_s <= max(self._longest_s, delivery.ahead_s or 0.0) and self._room > 0
        return is_near or self._is_for_all(delivery)

    def _is_for_all(self, delivery: Delivery) -> bool:
        return delivery.message.delivery_info.get("exchange") in self._fanouts

    @property
    def _room(self) -> int:
        return self._settings.most_waiting - len(self._waiting)

    @property
    def _room_back(self) -> int:
        """How many parked messages may come back at once: together with those here, no more than may wait,
        nor more than the worker would fetch without them. Some may be due, and not wait.
        """
        with self._lock:
            fetched = self._consumer.qos.value - sum(lets_in for _, lets_in in self._waiting.values())
        most = fetched + self._settings.most_waiting - self._park.unacknowledged
        return min(self._room, MOST_AT_ONCE, most if fetched > 0 else MOST_AT_ONCE)

    def _wait(self, delivery: Delivery, length_s: float) -> None:
        # `increment_eventually` has an upper limit: lower the count only for messages that have raised it.
        qos = self._consumer.qos
        lets_other_in = self._room > 0 and qos.value < qos.increment_eventually()
        with self._lock:
            entry = self._alarms.call_after(length_s, partial(self._wake, delivery))
            self._waiting[delivery] = entry, lets_other_in
            waiting = len(self._waiting)
            is_crowded = waiting >= self._crowd
            if is_crowded:
                self._crowd = math.inf
        if is_crowded:
            log.warning(
                "all %d messages that the worker may fetch at a time wait for their slots, and RabbitMQ lets"
                " no more in meanwhile: raise worker_prefetch_multiplier, or tasks without a limit wait, too",
                waiting,
            )

    def _wake(self, delivery: Delivery) -> None:
        with self._lock:
            known = self._waiting.pop(delivery, None)
        if known is None:
            return
        try:
            self._look_at(delivery)
        except (InvalidTaskError, ContentDisallowed) as error:
            self._consumer.on_invalid_task(None, delivery.message, error)
        except DecodeError as error:
            self._consumer.on_decode_error(delivery.message, error)
        finally:
            if known[1]:
                self._consumer.qos.decrement_eventually()

    def _sweep_soon(self) -> None:
        """Give back slots that no task has come for."""
        with self._lock:
            if self._is_open and not self._is_sweeping:
                self._is_sweeping = True
                self._alarms.call_after(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._is_sweeping = False
        if _give_back(self._batches, idle_only=True):
            self._sweep_soon()

    def _look_in(self, length_s: float) -> None:
        """Poll for parked messages after this time, unless a poll is due earlier."""
        at = time.monotonic() + length_s
        with self._lock:
            if not self._is_open:
                return
            if self._look is not None:
                if self._looks_at <= at:
                    return
                self._alarms.cancel(self._look)
            self._look, self._looks_at = self._alarms.call_after(max(0.0, length_s), self._bring_back), at

    def _bring_back(self) -> None:
        with self._lock:
            self._look = None
        if not self._looking.acquire(blocking=False):
            self._look_in(LEAST_LOOK_S)
            return
        try:
            self._bring_some_back()
        finally:
            self._looking.release()

    def _bring_some_back(self) -> None:
        room, found = self._room_back if self._park.has_room else 0, 0
        try:
            if room > 0:
                self._holds.look(self._park)
                self._changes.look(self._park)
                found = self._park.bring_back(self._longest_s * AHEAD, room, self._queued_s)
        except self._gone as error:
            log.warning("cannot look for parked tasks: %s", error)
        finally:
            # If there was no room for all due messages, there will be soon.
            self._look_in(LEAST_LOOK_S if found >= room else self._pause_s())

    @property
    def _ahead_s(self) -> float:
        """The longest time before its slot that a message may have to come back."""
        return self._longest_s * AHEAD + max(self._queued_s.values(), default=0.0)

    def _pause_s(self) -> float:
        """Time until the next message is due back or a hold may have ended, at most about a second."""
        least_s = max(self._longest_s / LOOKS, LEAST_LOOK_S)
        ends_s = [random.uniform(IDLE_S, MOST_PAUSE_S), self._holds.next_s]  # noqa: S311 - no secret
        if self._park.next_s is not None:
            ends_s.append(self._park.next_s - self._ahead_s)
        return max(least_s, min(ends_s))


def _give_back(batches: Sequence[Batches], *, idle_only: bool = False) -> bool:
    """Give back slots that no task has; returns whether any are left."""
    is_left = False
    try:
        for each in batches:
            is_left |= each.give_back(idle_only=idle_only)
    except StoreUnavailableError as error:
        log.info("unused slots could not be given back: %s", error)
    return is_left


def _is_stopping() -> bool:
    """Whether this worker has to stop, which it does in the next round of its event loop."""
    exit_codes = (state.should_stop, state.should_terminate)
    return any(exit_code is not None and exit_code is not False for exit_code in exit_codes)


def _seconds_to(instant: str | None) -> float | None:
    """Seconds until an instant in a message; None if it is missing or malformed."""
    if instant is None:
        return None
    try:
        at = datetime.fromisoformat(instant)
    except (TypeError, ValueError):
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time.time()
