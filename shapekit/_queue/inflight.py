"""Permits: how a policy takes a permit for a call, waits for one, and gives it back.

Waiting calls do not ask the store one by one: one check serves all calls of the process that wait at a key.
It is made now and then if the store is shared, and whenever limits are changed. A call that ends wakes the
next one.

A nested call can wait forever for the calls that it is itself a part of. To detect that, each context (of a
thread or task) remembers the calls in flight that began in it or in the context it was copied from: a task
knows the calls that were in flight when it was started.

Heartbeat: renews the leases of the calls that this process has in flight on one store.

Each store has one heartbeat thread per process. It starts with the first call and ends when a renewal is due
and no call is in flight. For an async-only store it is a task on the event loop of that call.

Registry: the calls of this process that hold a permit, or wait for one, under one name on one store.

The store holds the truth. A registry knows only the calls of its process. It wakes them when they get their
permits: every answer of the store about a key, whichever call asked, reaches all calls that wait at that key.
"""

from __future__ import annotations

import random
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from shapekit._runtime import process
from shapekit._runtime.drivers import (
    TASKS,
    Alarm,
    Driver,
    Twin,
    callers_level,
    has_ended,
    run,
    running_loop,
    running_trio,
)
from shapekit.algorithms.inflight import (
    ENTER,
    KEEP,
    LEAVE,
    PERMITTED,
    REFUSED,
    WATCH,
    Concurrency,
    PermitAnswer,
)
from shapekit.clock import CHUNK_S, Sleepers
from shapekit.decision import Decision
from shapekit.errors import ConfigError, QueueFullError, ShapekitError, StoreUnavailableError, gave_up, whose
from shapekit.rate import MAX_SPAN_US, SECOND_US
from shapekit.stores.base import PERMITS, Settings, Store, companion

if TYPE_CHECKING:
    from asyncio import Task

LOOK_US = 30_000
"""The shortest interval at which a process checks a shared store, for all its calls that wait at a key."""
SEEN_PART, SEEN_US = 8, 250_000
"""Soon after a change, the interval is the time since then divided by the first, up to the second."""
LATER_PART, LATER_US = 64, 1_000_000
"""The same for later."""
JITTER = 8
"""Each interval is lengthened at random by up to this part, so that processes do not check in step."""
STUCK_US = 5_000_000
"""After this time without a check, another call takes over: the event loop of the last one may be stopped."""


class _AtKey:
    """What the registry knows of one key."""

    __slots__ = (
        *("alive", "came_with", "coming", "due_us", "has_failed", "has_news", "is_changed", "looked_us"),
        *("looker", "most", "news_us", "permitted", "unsure_until_us", "waiting"),
    )

    def __init__(self) -> None:
        self.alive: set[int] = set()
        """The calls that the store may know."""
        self.coming: dict[Any, set[int]] = {}
        """The calls that have no permit yet, by the event loop that they run on."""
        self.permitted: set[int] = set()
        self.waiting: dict[int, PermitWaiter] = {}
        self.came_with = 0
        """The first call of this process in the last answer; 0 if none is there, negative from a fallback."""
        self.unsure_until_us = 0
        """Until when the store may still count a call of this process that is over."""
        self.due_us = 0
        """When the lease is due for renewal; 0 until the heartbeat first sees the key."""
        self.has_failed = False
        """Whether the last renewal failed, of this key or of another on the same part of the store."""
        self.most = MOST_KEYS
        """How many keys its next renewal may take along: fewer after a failure, which this key may cause."""
        self.looker: PermitWaiter | None = None
        self.looked_us = 0
        self.has_news = False
        """Whether a call got its permit, or began to wait alone, since the last check."""
        self.news_us = 0
        self.is_changed = False
        """Whether operators have changed the limits since the last check."""


class PermitWaiter:
    """A call that waits for a permit."""

    __slots__ = ("_alarm", "_at_key", "_registry", "came_with", "number")

    def __init__(self, registry: Registry, at_key: _AtKey, number: int, came_with: int) -> None:
        self._registry = registry
        self._at_key = at_key
        self._alarm: Alarm | None = None
        self.number = number
        self.came_with: int | None = came_with
        """The first call of this process when this one was put in line; None once the store has lost it."""

    @property
    def has_permit(self) -> bool:
        return self.number in self._at_key.permitted

    @property
    def is_lost(self) -> bool:
        """Whether the store has meanwhile forgotten the calls of this process at the key."""
        return self.came_with != self._at_key.came_with

    def begin_wait(self, alarm: Alarm, now_us: int) -> bool:
        """Wait with this alarm, which a change sets; returns whether this waiter checks the store for all."""
        with self._registry.lock:
            self._alarm = alarm
            at_key = self._at_key
            if self.has_permit or self.is_lost:
                alarm.set()
            if at_key.looker is None or not 0 <= now_us - at_key.looked_us <= STUCK_US:
                at_key.looker = self
            if at_key.looker is not self:
                return False
            if at_key.is_changed:
                alarm.set()
            at_key.looked_us = now_us
            if at_key.has_news or at_key.news_us > now_us:
                at_key.has_news, at_key.news_us = False, now_us
            return True

    def look_after_us(self, now_us: int) -> int:
        """How long until the next check: short for a key that changed lately, else long."""
        quiet_us = now_us - self._at_key.news_us
        length_us = max(LOOK_US, min(SEEN_US, quiet_us // SEEN_PART), min(LATER_US, quiet_us // LATER_PART))
        return length_us + random.randrange(length_us // JITTER)  # noqa: S311 - no secret

    def looks(self) -> None:
        """Note that this waiter is about to check the store for all."""
        self._at_key.is_changed = False

    def ring(self) -> None:
        if self._alarm is not None:
            self._alarm.set()

    def go(self) -> None:
        """Stop waiting; if this waiter checked for all, another one takes over."""
        with self._registry.lock:
            at_key = self._at_key
            at_key.waiting.pop(self.number, None)
            if at_key.looker is self:
                at_key.looker = None
                for waiter in list(at_key.waiting.values())[:1]:
                    waiter.ring()


class Registry:
    """The calls of this process under one name on one store, and the owner by which the store knows them."""

    def __init__(self, settings: Settings) -> None:
        self.lease_us = MAX_SPAN_US
        """The shortest lease of any policy that shares this registry."""
        self.begin()
        settings.listen(self.limits_changed)
        _REGISTRIES.add(self)

    def begin(self) -> None:
        """Start empty: at first, and in a forked child."""
        self.lock = process.rlock()
        self.owner = process.fresh_id()
        self.is_kept = False
        self.due_us = 0
        """When the first lease is due for renewal, or a new call may be there."""
        self._newest = 0
        self._keys: dict[str, _AtKey] = {}

    def admit(self, call: Permit, loop: Any = None) -> bool:
        """Register a call about to ask the store; returns whether a heartbeat renews this registry."""
        with self.lock:
            self._newest += 1
            call.owner, call.number = self.owner, self._newest
            call.is_over = False
            while call.key not in self._keys:
                self._keys.setdefault(call.key, _AtKey())
            at_key = self._keys[call.key]
            at_key.alive.add(call.number)
            if loop is not None:
                at_key.coming.setdefault(loop, set()).add(call.number)
            return self.is_kept

    def arrive(self, call: Permit) -> None:
        """Note that a call has its permit and gives it back itself: a closed event loop no longer ends it."""
        with self.lock:
            at_key = self._keys.get(call.key)
            if at_key is not None:
                _arrived(at_key, call.number)

    def end(self, call: Permit, *, unsure_until_us: int = 0) -> None:
        """Remove a call that is over. `unsure_until_us` is how long the store may go on counting it, if the
        store may have missed the end.
        """
        with self.lock:
            at_key = self._keys.get(call.key)
            if at_key is not None and call.owner == self.owner:
                at_key.alive.discard(call.number)
                at_key.permitted.discard(call.number)
                _arrived(at_key, call.number)
                if (waiter := at_key.waiting.get(call.number)) is not None:
                    waiter.go()
                at_key.unsure_until_us = max(at_key.unsure_until_us, unsure_until_us)
                self._tidy(call.key, at_key)
            # Last, so that a call interrupted before this line ends once more.
            call.is_over = True

    def join(self, call: Permit, came_with: int) -> PermitWaiter:
        """Register a call that waits for its permit."""
        with self.lock:
            at_key = self._keys[call.key]
            at_key.has_news |= not at_key.waiting
            waiter = at_key.waiting[call.number] = PermitWaiter(self, at_key, call.number, came_with)
            return waiter

    def hear(self, key: str, answer: PermitAnswer) -> None:
        """Apply an answer of the store: wake calls that got their permit or that the store forgot."""
        with self.lock:
            at_key = self._keys.get(key)
            if at_key is None:
                return
            at_key.came_with = answer[0]
            permitted = at_key.alive.intersection(answer[1:])
            at_key.has_news |= not permitted <= at_key.permitted
            at_key.permitted |= permitted
            for waiter in list(at_key.waiting.values()):
                if waiter.is_lost:
                    # Remember the loss: once another call has entered, the answer may be the same as before.
                    waiter.came_with = None
                if waiter.has_permit or waiter.is_lost:
                    waiter.ring()

    def limits_changed(self, *_: object) -> None:
        """Wake the waiters that check, since there may be more permits now.

        Takes no lock: a store may call this while it holds its own.
        """
        for at_key in list(self._keys.values()):
            at_key.is_changed = True
            if (looker := at_key.looker) is not None:
                looker.ring()

    # renewing

    def is_unsure(self, key: str) -> bool:
        """Whether the store may still count a call of this process that is over."""
        at_key = self._keys.get(key)
        return at_key is not None and (at_key.unsure_until_us > 0 or self.has_lost(key))

    def has_lost(self, key: str) -> bool:
        """Whether the event loop of a waiting call was closed."""
        at_key = self._keys.get(key)
        return at_key is not None and any(map(has_ended, list(at_key.coming)))

    def due(self, now_us: int) -> list[Due]:
        """The keys to renew if one of them is due, the most urgent first, those that failed last.

        Keys that are due soon are renewed along with it, so that they come to share their trips.
        """
        with self.lock:
            kept = self._keys.copy()
            for at_key in kept.values():
                at_key.due_us = at_key.due_us or now_us
            pause_us = self.lease_us // RENEWALS
            self.due_us = min([now_us + pause_us, *(at_key.due_us for at_key in kept.values())])
            if self.due_us > now_us:
                return []
            soon_us = now_us + pause_us // ALONG
            return sorted(
                Due(at_key.has_failed, at_key.due_us, key, at_key.most, len(at_key.alive))
                for key, at_key in kept.items()
                if at_key.due_us <= (now_us if at_key.has_failed else soon_us)
            )

    def alive(self, keys: Sequence[str], now_us: int) -> tuple[int, int, tuple[int, ...]]:
        """The calls at these keys that are not over, for a renewal: the owner, its newest number, and their
        numbers, of which no two keys have one in common.
        """
        with self.lock:
            numbers: set[int] = set()
            for at_key in filter(None, map(self._keys.get, keys)):
                self._forget_lost(at_key, now_us)
                numbers |= at_key.alive
            return self.owner, self._newest, tuple(sorted(numbers))

    def lost(self, keys: Sequence[str], since_us: int) -> None:
        """Mark keys as failed because a trip at `since_us` to their part of the store was not answered."""
        with self.lock:
            for at_key in filter(None, map(self._keys.get, keys)):
                at_key.has_failed, at_key.due_us = True, since_us + self.lease_us // RENEWALS // HURRY

    def found(self, is_there: Callable[[str], bool]) -> None:
        """Note that a part of the store answers: its failed keys are due, unless they also failed alone."""
        with self.lock:
            for key, at_key in self._keys.copy().items():
                if at_key.has_failed and at_key.most > 1 and is_there(key):
                    at_key.has_failed, at_key.due_us, self.due_us = False, 0, 0

    def renewed(
        self, key: str, answer: PermitAnswer | None, since_us: int, now_us: int, *, shared: int = 1
    ) -> None:
        """Apply the answer to a renewal of `shared` keys sent at `since_us`; None if it failed."""
        if answer is not None and answer[0] < 0:
            answer = None  # a fallback answered: the store itself was not reached
        with self.lock:
            at_key = self._keys.get(key)
            if at_key is None:
                return
            # Counted from when the question was sent: however late the answer, the lease may have begun then.
            pause_us = self.lease_us // RENEWALS
            at_key.has_failed = answer is None
            at_key.most = MOST_KEYS if answer is not None else max(1, shared // 4)
            at_key.due_us = since_us + (pause_us // HURRY if answer is None else pause_us)
            # The renewal does not settle a call that became unsure after it was sent.
            if now_us >= at_key.unsure_until_us or (
                answer is not None and at_key.unsure_until_us <= since_us + self.lease_us
            ):
                at_key.unsure_until_us = 0
            self._tidy(key, at_key)
        if answer is not None:
            self.hear(key, answer)

    def rest(self) -> bool:
        """Whether there is nothing to renew; then the heartbeat drops this registry."""
        with self.lock:
            if not self._keys:
                self.is_kept = False
            return not self._keys

    def _forget_lost(self, at_key: _AtKey, now_us: int) -> None:
        """End the calls whose event loop was closed; the store does not know of that yet."""
        for loop in filter(has_ended, list(at_key.coming)):
            lost = at_key.coming.pop(loop, set())
            at_key.alive -= lost
            at_key.permitted -= lost
            at_key.unsure_until_us = max(at_key.unsure_until_us, now_us + self.lease_us)
            for waiter in [waiter for waiter in list(at_key.waiting.values()) if waiter.number in lost]:
                waiter.go()

    def _tidy(self, key: str, at_key: _AtKey) -> None:
        is_known = key in self._keys and self._keys[key] is at_key
        if is_known and not at_key.alive and not at_key.waiting and not at_key.unsure_until_us:
            del self._keys[key]


def _arrived(at_key: _AtKey, number: int) -> None:
    for loop, numbers in at_key.coming.copy().items():
        numbers.discard(number)
        if not numbers:
            at_key.coming.pop(loop, None)


_REGISTRIES = process.begin_anew(Registry.begin)


class Due(NamedTuple):
    """A key whose lease is due for renewal. These sort by urgency."""

    has_failed: bool
    due_us: int
    key: str
    most: int
    calls: int


class Renewal(NamedTuple):
    """How the leases of a registry are renewed."""

    keep: Twin[Any]
    """Tells the store, for several keys, which calls of this process are not over."""
    shard: Callable[[str], Hashable]
    """The part of the store that a key lies on."""


RENEWALS = 3
"""How many times a lease is renewed within its length."""
HURRY = 4
"""How many times sooner a renewal is retried after the store did not answer."""
ALONG = 8
"""Keys that are due within this part of the time between renewals are renewed along with those due now."""
MOST_KEYS, MOST_CALLS = 100, 300
"""The most keys that one trip renews, and about how many calls: the other renewals wait for it meanwhile."""


class Heartbeat:
    """Renews the leases of the calls in flight on one store.

    Many keys share a trip, and each trip takes the most urgent ones. If a trip fails, the part of the store
    that holds its keys may be lost: from then on these keys come last, one at a time, so that they delay the
    others by no more than one trip. If that part does answer, a single key is at fault: smaller and smaller
    trips find it.
    """

    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._is_awaited = store.awaited_only
        self._task: Task[None] | None = None
        self.begin()
        _HEARTBEATS.add(self)
        store.wakes(self)

    def begin(self) -> None:
        """Start empty: at first, and in a forked child."""
        self._lock = process.rlock()
        self._kept: dict[Registry, Renewal] = {}
        self._alarm: Alarm | None = None
        self._runs = False

    def keep(self, registry: Registry, renewal: Renewal) -> None:
        """Renew the leases of a registry from now on, as long as it has calls."""
        begins = False
        try:
            with self._lock:
                registry.due_us = self._clock.now_us() + registry.lease_us // RENEWALS
                self._kept[registry] = renewal
                registry.is_kept = True
                if self._alarm is not None:
                    # The thread may sleep for longer than this registry can wait.
                    self._alarm.set()
                if self._runs:
                    return
                # No function is called in between, so no signal handler can run here.
                self._runs = begins = True
            if not self._is_awaited:
                renew = partial(run, self._run)
                process.start_thread(threading.Thread(target=renew, name="shapekit leases", daemon=True))
            elif hasattr(loop := running_loop(), "create_task"):
                self._task = loop.create_task(self._run(TASKS))
            else:
                # An async-only store cannot be asked without an asyncio loop; the caller gets its error.
                self._runs = registry.is_kept = False
        except BaseException:
            if begins:
                self._runs = registry.is_kept = False
            raise

    def store_closed(self) -> None:
        """Stop all renewals: a closed store does not answer."""
        with self._lock:
            for registry in list(self._kept):
                registry.is_kept = False
            self._kept.clear()
            if self._alarm is not None:
                self._alarm.set()

    async def _run(self, driver: Driver) -> None:
        async def ended() -> None:
            self._ended()

        sleep = Twin(self._clock.sleep, self._clock.asleep)
        try:
            driver.may_be_thrown()
            alarm = driver.alarm()
            while (sleep_s := self._sleep_s(alarm)) is not None:
                if sleep_s > 0:
                    await driver.ask(sleep, sleep_s, alarm)
                if (first := self._first_due()) is not None:
                    await self._renew(driver, *first)
                alarm = driver.alarm()
        except BaseException as error:
            await driver.given_back(error, ended, self._ended)
            raise

    def _ended(self) -> None:
        """The task's event loop has ended; another heartbeat may start."""
        with self._lock:
            self._runs = False
            for registry in list(self._kept):
                registry.is_kept = False

    def _sleep_s(self, alarm: Alarm) -> float | None:
        """How long to sleep until a renewal is due; None if there is nothing to renew."""
        with self._lock:
            for registry in filter(Registry.rest, list(self._kept)):
                if not registry.is_kept:
                    self._kept.pop(registry, None)
            if not self._kept:
                self._alarm = None
                self._runs = False
                return None
            self._alarm = alarm
            due_us = min([registry.due_us for registry in list(self._kept)])
            return min((due_us - self._clock.now_us()) / SECOND_US, CHUNK_S)

    def _first_due(self) -> tuple[Registry, Renewal, list[Due]] | None:
        """The registry with the most urgent key, how to renew it, and all of its keys that are due."""
        now = self._clock.now_us()
        with self._lock:
            kept = [one for one in self._kept.copy().items() if one[0].due_us <= now]
        found = [(registry, renewal, due) for registry, renewal in kept if (due := registry.due(now))]
        return min(found, key=lambda one: one[2][0], default=None)

    async def _renew(self, driver: Driver, registry: Registry, renewal: Renewal, due: list[Due]) -> None:
        """Renew the lease of the most urgent key, and on the same trip those of the keys that fit."""
        first, *others = due
        shard = renewal.shard(first.key)
        others = [one for one in others if renewal.shard(one.key) == shard]
        together, most, calls = [first], 1 if first.has_failed else first.most, first.calls
        for one in others:
            most = min(most, one.most)
            if one.has_failed or len(together) >= most or calls > MOST_CALLS:
                break
            together.append(one)
            calls += one.calls
        keys = [one.key for one in together]
        since_us = self._clock.now_us()
        try:
            answers = await driver.ask(renewal.keep, keys, registry.alive(keys, since_us))
        except Exception as error:
            # Even an error that no store should raise must not end this thread: all other leases need it.
            _failed(keys, error)
            answers = [None] * len(keys)
            if first.most > 1:
                registry.lost([one.key for one in others], since_us)
        else:
            registry.found(lambda key: renewal.shard(key) == shard)
        now_us = self._clock.now_us()
        for key, answer in zip(keys, answers, strict=True):
            registry.renewed(key, answer, since_us, now_us, shared=len(keys))


def _failed(keys: Sequence[str], error: Exception) -> None:
    import logging  # noqa: PLC0415 - loaded only to log

    logging.getLogger("shapekit.store").warning(
        "the leases of key %r%s could not be renewed and are tried again: %s",
        keys[0],
        f" and {len(keys) - 1} more" if len(keys) > 1 else "",
        error,
        exc_info=None if isinstance(error, ShapekitError) else error,
    )


_HEARTBEATS = process.begin_anew(Heartbeat.begin)


def heartbeat_of(store: Store) -> Heartbeat:
    """The heartbeat of a store."""
    return companion(store, "heartbeat", partial(Heartbeat, store))


_TIDIED_AT = 64


_BEGUN: ContextVar[tuple[ref[Permit], ...]] = ContextVar("shapekit_begun", default=())
"""The calls in flight that began in this context, or in the one it was copied from."""


def _lives(known: ref[Permit]) -> bool:
    permit = known()
    return permit is not None and not permit.is_over


def _task() -> object:
    """The current task, or else the current thread."""
    if (trio := running_trio()) is not None:
        return trio.lowlevel.current_task()
    return threading.get_ident() if running_loop() is None else sys.modules["asyncio"].current_task()


RETRY_US = SECOND_US
"""The `retry_after` of a refusal: a guess, since nothing tells when a call in flight will end."""


class Permit:
    """The permit of a call, or its wait for one."""

    __slots__ = (
        *("__weakref__", "asked_us", "enclosing", "is_over", "key", "max_wait_us", "number", "owner"),
        *("permits", "timeout_us", "waited_us"),
    )

    def __init__(self, permits: Permits, key: str) -> None:
        self.is_over = True
        """Whether there is nothing to give back, because the call has not asked yet or has ended."""
        self.key = key
        self.owner = 0
        self.number = 0
        self.permits = permits
        self.asked_us = self.waited_us = 0
        self.max_wait_us: int | None = None
        self.timeout_us: int | None = None
        self.enclosing: object = None
        """The task (or thread) whose nested calls have to end before this call can; None if not known."""

    def sleeps_until_us(self, pause_us: int | None) -> int | None:
        """Until when to sleep unless woken before; None for no bound."""
        bounds = (self.max_wait_us, self.timeout_us)
        ends = [self.asked_us + bound for bound in bounds if bound is not None]
        if pause_us is not None:
            ends.append(self.permits.clock.now_us() + pause_us)
        return min(ends, default=None)

    def has_waited_us(self) -> int:
        """How long ago the permit was asked for."""
        return self.permits.clock.now_us() - self.asked_us

    def is_refused(self) -> bool:
        """Whether `max_wait` is over. TimeoutError if `timeout` is."""
        waited_us = self.has_waited_us()
        if self.timeout_us is not None and waited_us >= self.timeout_us:
            raise gave_up(self.key, self.permits.policy, waited_us)
        return self.max_wait_us is not None and waited_us >= self.max_wait_us

    def refusal(self) -> QueueFullError:
        """The error for a call that got no permit in time."""
        limit, waited_us = self.permits.limit_of(self.key), self.has_waited_us()
        retry_at_us = self.asked_us + waited_us + RETRY_US
        full = Decision(False, limit, limit, 0, retry_at_us, RETRY_US, "concurrency")
        bound_us = waited_us if self.max_wait_us is None else self.max_wait_us
        delay, bound = waited_us / SECOND_US, bound_us / SECOND_US
        return QueueFullError(full, self.key, delay, bound, self.permits.policy)


class _HeldPermit(Permit):
    """A permit that is given back if the object is garbage-collected.

    An interrupt that hits a finalizer is lost, so calls should end without one: a permit has this class only
    while there is something to give back.
    """

    __slots__ = ()

    def __del__(self) -> None:
        if not self.is_over:
            process.in_background(self.permits.give_back, self.key, self.owner, self.number)


class Permits:
    """Takes and gives back the permits of one policy. A call that gives up, for any reason, keeps none."""

    def __init__(self, policy: str, store: Store, limit: Concurrency, sleepers: Sleepers) -> None:
        name = policy + PERMITS
        self.policy = policy
        self.limit = limit
        self.instant = store.instant
        self.clock = store.clock
        self._sleepers = sleepers
        self._settings = store.settings(policy)
        self.registry = companion(store, f"registry of {policy}", partial(Registry, self._settings))
        """The calls of all policies of this name in this process."""
        self._hears_all = store.instant and not store.shared
        """Whether no other process holds a permit and nothing is lost, so that no checks are needed."""
        self._is_awaited = store.awaited_only
        program = limit if store.shared else limit.unending()
        self.registry.lease_us = min(self.registry.lease_us, program.lease_us)
        bound = (name, program)
        self._enter = store.twin(*bound, ENTER)
        self._watch = store.twin(*bound, WATCH)
        self._leave = store.twin(*bound, LEAVE)
        self._keep = store.twin(*bound, KEEP)
        self._keep_leases: Callable[[], None] | None = None
        if store.shared:
            keep = Twin(store.bind_many(*bound, KEEP), store.abind_many(*bound, KEEP))
            renewal = Renewal(keep, partial(store.shard, *bound))
            self._keep_leases = partial(heartbeat_of(store).keep, self.registry, renewal)

    def limit_of(self, key: str) -> int:
        """How many calls of a key may be in flight, as set by an operator or else in the code."""
        limit: Concurrency = self._settings.program(self.limit, key)
        return limit.limit

    # taking

    def untaken(self, key: str) -> Permit:
        """A permit object for a call, not taken yet."""
        return Permit(self, key)

    async def take(
        self,
        driver: Driver,
        permit: Permit,
        max_wait_us: int | None = None,
        timeout_us: int | None = None,
        has_to_wait: Callable[[], object] | None = None,
    ) -> None:
        """Take a permit as soon as one is free, in order of arrival; also one that was given back before.

        `has_to_wait` is called if the store has put the call in line. Raises QueueFullError after a wait of
        `max_wait`, TimeoutError after `timeout`. A task that is cancelled keeps no permit.
        """
        key = permit.key
        await driver.stop_if_cancelled()
        if self.registry.is_unsure(key):
            await self._heal(driver, key)
        permit.asked_us, permit.max_wait_us, permit.timeout_us = self.clock.now_us(), max_wait_us, timeout_us
        self._begin(permit, driver.loop())
        # A dropped coroutine runs no cleanup here: the finalizer gives its permit back.
        try:
            place, came_with = await self._entered(driver, permit, int(max_wait_us != 0))
            if not self._is_permitted(permit, place, came_with):
                if has_to_wait is not None:
                    has_to_wait()
                if max_wait_us is None and timeout_us is None:
                    self._check_nested(key)
                self._sleepers.waiting[id(permit)] = driver
                await self._wait(driver, permit, self.registry.join(permit, came_with))
                self._sleepers.waiting.pop(id(permit), None)
                permit.waited_us = permit.has_waited_us()
            self.registry.arrive(permit)
        except BaseException as error:
            try:
                await driver.given_back(error, partial(self.leave, driver, permit))
            finally:
                self._sleepers.waiting.pop(id(permit), None)
            raise

    async def _wait(self, driver: Driver, permit: Permit, waiter: PermitWaiter) -> None:
        key = permit.key
        while not waiter.has_permit:
            if waiter.is_lost:
                place, came_with = await self._entered(driver, permit, 1)
                waiter.came_with = came_with
                self._is_permitted(permit, place, came_with)
                continue
            alarm = driver.alarm()
            is_looker = waiter.begin_wait(alarm, self.clock.now_us())
            until_us = permit.sleeps_until_us(self._pause_us(waiter, is_looker))
            await self._sleepers.rest(driver, alarm, until_us)
            if not waiter.has_permit and not waiter.is_lost and permit.is_refused():
                raise permit.refusal()
            if not is_looker or waiter.has_permit:
                continue
            waiter.looks()
            if self.registry.is_unsure(key):
                await self._heal(driver, key)
            else:
                self.registry.hear(key, await driver.ask(self._watch, key, permit.owner))
        waiter.go()

    def has_begun(self, permit: Permit, *, is_enclosing: bool) -> None:
        """Record that the call of this permit is in flight, so that nested calls are detected."""
        if is_enclosing:
            permit.enclosing = _task()
        calls = _BEGUN.get()
        while calls and not _lives(calls[-1]):
            calls = calls[:-1]
        if len(calls) % _TIDIED_AT == _TIDIED_AT - 1:
            calls = tuple(filter(_lives, calls))
        _BEGUN.set((*calls, ref(permit)))

    # giving back

    async def leave(self, driver: Driver, permit: Permit) -> None:
        """Give a permit back; a second time does nothing. A store that is down learns of it at a renewal."""
        # Permits from before a fork belong to the parent, not to the child.
        if permit.is_over or permit.owner != self.registry.owner:
            return
        if self.instant:
            await self._left(driver, permit)
        else:
            await driver.shielded(partial(self._left, driver, permit))

    async def _left(self, driver: Driver, permit: Permit) -> None:
        place = (permit.key, permit.owner, permit.number)
        try:
            answer: PermitAnswer = await driver.ask(self._leave, *place)
        except StoreUnavailableError:
            self._end(permit, is_sure=False)
            return
        self._end(permit, is_sure=answer[0] >= 0)
        self.registry.hear(permit.key, answer)
        if self.registry.has_lost(permit.key) and not self._is_awaited:
            # The store may have given the permit to a call whose event loop is closed: the next call gets it.
            process.in_background(run, self._heal, permit.key)

    def leave_soon(self, permit: Permit) -> None:
        """`leave` for a caller that runs on an event loop and cannot await."""
        if self.instant:
            run(self.leave, permit)
        elif self._is_awaited and hasattr(loop := running_loop(), "create_task"):
            # The loop keeps the task alive while the store is asked. If the task is cancelled before it
            # begins, the permit is dropped, and its finalizer gives it back.
            loop.create_task(self.leave(TASKS, permit))
        elif not permit.is_over:
            process.in_background(self.give_back, permit.key, permit.owner, permit.number)
            permit.is_over = True

    def give_back(self, key: str, owner: int, number: int) -> None:
        """`leave` for a permit whose object is gone."""
        permit = Permit(self, key)
        permit.owner, permit.number = owner, number
        if self._is_awaited:
            # Without an event loop this store cannot be asked: the next renewal tells it.
            self._end(permit, is_sure=False)
        else:
            permit.is_over = False
            run(self.leave, permit)

    # inside

    def _begin(self, permit: Permit, loop: object) -> None:
        """Register a call that is about to ask the store."""
        process.background_ready()
        permit.__class__ = _HeldPermit  # first: an interrupt may come right after the next line
        is_kept = self.registry.admit(permit, loop)
        if self._keep_leases is not None and not is_kept:
            self._keep_leases()

    def _check_nested(self, key: str) -> None:
        """Check a call that is about to wait, without a bound, until fewer calls are in flight.

        If the call is nested in all of them, raises ConfigError if none can end before it, and warns if
        another thread or task may end one.
        """
        limit = self.limit_of(key)
        around = [call for known in _BEGUN.get() if (call := known()) is not None and not call.is_over]
        around = [call for call in around if call.key == key and call.permits.registry is self.registry]
        # A forked child inherits its parent's calls in this list, but they are not its own.
        around = [call for call in around if call.owner == self.registry.owner]
        if len(around) < limit:
            return
        # A call made by a thread without an event loop also encloses a loop that the thread runs meanwhile.
        here, subject = (_task(), threading.get_ident()), whose(key, self.policy)
        if all(call.enclosing in here for call in around):
            raise ConfigError(
                "concurrency",
                limit,
                f"is used up for {subject} by calls that this one is made in: it would wait for ever",
                "raise it, or give the inner call a policy or a key of its own",
            )
        warnings.warn(
            f"concurrency={limit} is used up for {subject} by calls that this thread or task, or "
            "the one that started it, has in flight: this call waits for ever, unless others end them; end "
            "them first (close the response), raise concurrency, or give this call a policy or a key of its "
            "own",
            RuntimeWarning,
            stacklevel=callers_level(),
        )

    def _is_permitted(self, permit: Permit, place: int, came_with: int) -> bool:
        """Whether the store gave a permit; QueueFullError if it refused."""
        if place == REFUSED:
            self._end(permit, is_sure=came_with >= 0)
            raise permit.refusal()
        self.registry.hear(permit.key, (came_with, permit.number) if place == PERMITTED else (came_with,))
        return place == PERMITTED

    async def _entered(self, driver: Driver, permit: Permit, may_wait: int) -> tuple[int, int]:
        answer: tuple[int, int] = await driver.ask(
            self._enter, permit.key, permit.owner, permit.number, may_wait
        )
        return answer

    def _end(self, permit: Permit, *, is_sure: bool) -> None:
        unsure_until_us = 0 if is_sure else self.clock.now_us() + self.registry.lease_us
        self.registry.end(permit, unsure_until_us=unsure_until_us)
        permit.__class__ = Permit

    async def _heal(self, driver: Driver, key: str) -> None:
        since_us = self.clock.now_us()
        answer = await driver.ask(self._keep, key, *self.registry.alive([key], since_us))
        self.registry.renewed(key, answer, since_us, self.clock.now_us())
        # Also if a fallback answered for a store that is gone.
        self.registry.hear(key, answer)

    def _pause_us(self, waiter: PermitWaiter, is_looker: bool) -> int | None:
        """How long until the next check; None for no checks."""
        if not self._hears_all:
            return waiter.look_after_us(self.clock.now_us()) if is_looker else STUCK_US
        if not is_looker:
            return None
        # Nothing wakes this waiter when another waiter's event loop is closed, or when an override ends.
        ends_us = self._settings.known.ends_us
        return STUCK_US if ends_us is None else min(STUCK_US, max(1, ends_us - self.clock.wall_us()))
