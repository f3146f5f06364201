"""Scopes: the parts of a server that are limited separately, learned from its responses.

A server may count by parts of its own (GitHub's resources, Discord's buckets) and name the part in each
response, so a hold for one part need not stop the others. Which route belongs to which part is not known
beforehand: shapekit learns it.

Scoped caller: a request that may have to wait for a scope; lines keep such requests in order.

Scoped slots: how a request gets its slot at a key some of whose scopes may be held.

The request takes its slot at the key as any call does. A hold of a scope also marks the key, so that a slot
taken or confirmed meanwhile shows the mark, and only then does the call ask for the state of its scope. If
the scope is held, the call gives its slot back, waits until the scope is free, and starts again. So no
request for a held scope leaves or delays the others, and while no scope is held the store is not asked.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from shapekit._queue.moving import STUCK_S, KeyPoller, Watch
from shapekit._queue.waiter import FRESH_US, PendingWait, refusal
from shapekit._runtime import process
from shapekit._runtime.drivers import Alarm, Driver
from shapekit._runtime.process import SWITCH
from shapekit.clock import forgets
from shapekit.decision import Decision
from shapekit.errors import QueueFullError, StoreUnavailableError, after_waiting, gave_up
from shapekit.keys import PART, scoped, segments
from shapekit.rate import AS_CONFIGURED, SECOND_US, Duration, Fits, max_wait_us, timeout_us

if TYPE_CHECKING:
    from shapekit._queue.inflight import Permit
    from shapekit.keys import Target
    from shapekit.shaper import Core, Reservation

MOST_PLACES = 2_048
"""How many places are remembered; beyond that, the one with the oldest response is dropped, leaves first."""
MOST_SEGMENTS = 16
"""How many segments of a path are looked at."""
MOST_SCOPES = 64
"""How many scopes are told apart below one place."""
MOST_HOLDS = 1_024

Path: TypeAlias = tuple[str, ...]
"""A key, a method and the segments of a path, or a prefix of these."""


class _Node(NamedTuple):
    here: str | None = None
    """The scope of the last response at exactly this place."""
    below: frozenset[str] | None = frozenset()
    """All scopes seen here and below; None if there are too many to tell apart."""


class _Observed(NamedTuple):
    until_us: int
    at_us: int


class Scopes:
    """The scopes that one process has learned for one policy; thread-safe.

    A request has the scope of the last response at its place (key, method, path). If there was none, the
    deepest known place above it decides: if a single scope was seen there, the request has that one; if
    several, it may have any of them.
    """

    __slots__ = ("_holds", "_lock", "_nodes", "any_known", "learned")

    def __init__(self) -> None:
        self.learned = Watch(0)
        """Wakes waiting requests when a response names another scope than expected."""
        self.any_known = False
        """Whether any response has named a scope yet."""
        self._nodes: OrderedDict[Path, _Node] = OrderedDict()
        self._holds: dict[tuple[str, str], _Observed] = {}
        self._lock = process.lock()

    def learn(self, key: str, target: Target, scope: str) -> None:
        """Learn the scope that a response has named."""
        place, is_whole = _place(key, target)
        nodes = self._nodes
        with self._lock:
            is_new = nodes.get(place, _UNKNOWN).here != scope
            # From leaf to root, so that no place is dropped before those below it.
            for end in range(len(place), 0, -1):
                above = place[:end]
                here, below = nodes.get(above, _UNKNOWN)
                if is_whole and end == len(place):
                    here = scope
                if below is not None and scope not in below:
                    below = below | {scope} if len(below) < MOST_SCOPES else None
                nodes[above] = _Node(here, below)
                if above in nodes:
                    nodes.move_to_end(above)
            while len(nodes) > MOST_PLACES:
                nodes.popitem(last=False)
        self.any_known = True
        if is_new:
            self.learned.ring()

    def hear(self, key: str, scope: str, until_us: int, now_us: int, *, is_own: bool = True) -> None:
        """Remember a hold of a scope; `is_own` if this process has placed it just now."""
        with self._lock:
            holds = {place: hold for place, hold in self._holds.items() if hold.until_us > now_us}
            holds.pop((key, scope), None)
            process.make_room(holds, MOST_HOLDS)
            holds[key, scope] = _Observed(until_us, now_us if is_own else 0)
            self._holds = holds

    def find(self, key: str, target: Target, now_us: int) -> tuple[tuple[str, ...], bool]:
        """The scopes to wait for, and whether that is the request's own: if it is unknown, they are all held
        ones that it may have.
        """
        below, path = self._seen(key, target), target.path
        if below is not None and len(below) == 1:
            return tuple([scope for scope in below if _may_have(scope, path)]), True
        held = [
            scope
            for (of, scope), hold in self._holds.items()
            if of == key
            and hold.until_us > now_us
            and (not below or scope in below)
            and _may_have(scope, path)
        ]
        return tuple(held), False

    def _seen(self, key: str, target: Target) -> frozenset[str] | None:
        """The scope of a request, or those seen below the nearest known place above it; None if too many."""
        place, is_whole = _place(key, target)
        node = self._nodes.get(place, _UNKNOWN)
        if is_whole and node.here is not None:
            return frozenset((node.here,))
        end = len(place)
        while not node.below and node.below is not None and end > 1:
            end -= 1
            node = self._nodes.get(place[:end], _UNKNOWN)
        return node.below

    def heard_until_us(self, key: str, scope: str, since_us: int) -> int:
        """The end of a hold that this process placed since `since_us`; with 0, of any hold that it knows."""
        hold = self._holds.get((key, scope))
        return hold.until_us if hold is not None and hold.at_us >= since_us else 0


_UNKNOWN = _Node()


def _may_have(scope: str, path: str) -> bool:
    """Whether a request may have a scope: one that counts for a part of a path has that part in its own."""
    return f"{scope.partition(PART)[2]}/" in f"{path}/"


def _place(key: str, target: Target) -> tuple[Path, bool]:
    path = segments(target.path)
    return (key, target.method, *path[:MOST_SEGMENTS]), len(path) <= MOST_SEGMENTS


Place: TypeAlias = tuple[str, tuple[str, ...], object]
"""A key, the scopes waited for, and the event loop that waits; None for threads."""

_numbers = count()


class Caller:
    """One request: its arguments, when it asked, and when it gives up."""

    def __init__(
        self,
        core: Core,
        known: Scopes,
        key: str,
        target: Target,
        cost: int,
        max_wait_us: int | None,
        timeout_us: int | None,
        loop: object,
        permit: Permit | None,
        waited_us: int,
    ) -> None:
        self.key = key
        self.cost = cost
        self.permit = permit
        """Its permit under `concurrency=`: taken, except while the request waits for a scope."""
        self.max_wait_us = max_wait_us
        self.number = next(_numbers)
        """Its number in the order of all callers, kept however often it starts again."""
        self.scopes: tuple[str, ...] = ()
        self.is_sure = True
        """Whether its scope is known; else it waits for all scopes that it may have."""
        self.held_until_us = 0
        self.unsure_until_us = 0
        """How long it waits at most for scopes that it may not have; 0 until such a scope is held.

        Of several that are held by turns, there may never be an instant at which all of them are free.
        """
        self.has_waited = waited_us > 0
        self.has_looked = False
        """Whether it has checked its scopes before taking its slot."""
        self.is_behind = False
        """Whether it came while callers that had waited were taking their slots."""
        self.poller: KeyPoller | None = None
        """Polls the scopes that it waits for."""
        self.watched: tuple[str, ...] = ()
        """The scopes that the poller asks about."""
        self.alarm: Alarm | None = None
        self.left_us = max_wait_us
        """How long it may still wait, as of its last reservation."""
        self.waits_for_quotas = True
        """Whether `max_wait` also covers the wait for a spent quota."""
        self.time_left_us = timeout_us
        self.stands_at: Place | None = None
        """The line that it has joined."""
        self._clock = core.clock
        self._known = known
        self._policy = core.name
        self._target = target
        self._loop = loop
        self.asked_us = core.clock.now_us() - waited_us
        self.reservation: Reservation | None = None
        """The current slot; a caller may take several in succession, which listeners see as one."""
        self.had_slot = False
        self.is_returned = False
        """Whether the last slot was given back in time for another call."""
        self._gives_up_us = None if timeout_us is None else self.asked_us + timeout_us
        self._before_us = 0

    def look_up(self) -> None:
        """Find the scopes to wait for, as far as they are known."""
        now = self._clock.now_us()
        self.scopes, self.is_sure = self._known.find(self.key, self._target, now)

    @property
    def still_waits(self) -> bool:
        """Whether the scopes that it waits for are unchanged and still held, as far as it knows."""
        return self.watched == self.scopes and self.held_until_us > self._clock.now_us()

    def scoped_keys(self) -> list[str]:
        return [scoped(self.key, scope) for scope in self.scopes]

    @property
    def place(self) -> Place:
        """The line it belongs to."""
        return self.key, self.scopes, self._loop

    def sleeps_until_us(self) -> int:
        """Until when to sleep before asking again while a scope is held; raises the error when time is up."""
        now = self._clock.now_us()
        self.check_wait(self.held_until_us - self.asked_us, " ".join(self.scoped_keys()))
        if self._gives_up_us is None:
            return self.held_until_us
        if now >= self._gives_up_us:
            raise gave_up(self.key, self._policy, now - self.asked_us)
        return min(self.held_until_us, self._gives_up_us)

    def look_at_clock(self) -> int | None:
        """The longest wait for a slot to ask the store for now, in microseconds."""
        now = self._clock.now_us()
        has_waited = self.has_waited or (self.permit is not None and self.permit.waited_us > 0)
        self._before_us = now - self.asked_us if has_waited else 0
        if self._gives_up_us is not None:
            self.time_left_us = max(0, self._gives_up_us - now)
        if self.max_wait_us is None:
            return None
        self.left_us = max(0, self.max_wait_us - self._before_us)
        return self.left_us if self.waits_for_quotas else None

    def late(self, reservation: Reservation) -> Reservation:
        """The slot, with the wait before it was taken added to its delay."""
        return reservation.after_waiting(self._before_us)

    def restated(self, error: QueueFullError) -> QueueFullError:
        """The error for a refused slot, with the earlier wait added to its delay."""
        bound_s = error.max_wait if self.max_wait_us is None else self.max_wait_us / SECOND_US
        return after_waiting(error, self._before_us / SECOND_US, bound_s)

    def check_wait(self, wait_us: int, key: str) -> None:
        """Refuse the request if it would wait for longer than it accepts."""
        if self.max_wait_us is not None and wait_us > self.max_wait_us:
            self._before_us = 0
            over_us = wait_us - self.max_wait_us
            refusal = Decision(False, 1, 1, 0, self.asked_us + wait_us, over_us)
            delay, bound = wait_us / SECOND_US, self.max_wait_us / SECOND_US
            raise QueueFullError(refusal, key, delay, bound, self._policy, held=True)


class Lines:
    """Requests that wait for the same scopes, on one event loop or in threads, in the order of arrival."""

    def __init__(self) -> None:
        self._lock = process.lock()
        self.begin()
        _LINES.add(self)

    def begin(self) -> None:
        """Start empty: at first, and in a forked child, since the callers that waited are its parent's."""
        self._lines: dict[Place, dict[int, Caller]] = {}

    def join(self, caller: Caller) -> None:
        """Join the line that the caller now belongs to."""
        place = caller.place
        if caller.stands_at == place:
            return
        self.leave(caller)
        # First, so that a caller interrupted after the next line leaves the line, too.
        caller.stands_at = place
        with self._lock:
            line = self._lines.get(place, {})
            line[caller.number] = caller
            self._lines[place] = line

    def is_first(self, caller: Caller, alarm: Alarm) -> bool:
        """Whether the caller is first in line; if not, the alarm rings when that may have changed."""
        place = caller.place
        if place not in self._lines:
            return True
        self.join(caller)
        with self._lock:
            caller.alarm = alarm
            line = self._lines[place]
            first = line[min(line)]
            if first.has_waited or first.is_behind:
                caller.is_behind = True
            return first is caller

    def leave(self, caller: Caller) -> None:
        """Leave the line, and wake the caller that is first now."""
        place = caller.stands_at
        if place is None:
            return
        with self._lock:
            line = self._lines.get(place)
            if line is not None:
                line.pop(caller.number, None)
                if not line:
                    self._lines.pop(place, None)
                elif (alarm := line[min(line)].alarm) is not None:
                    alarm.set()
        # Last, so that a caller interrupted before this line leaves once more.
        caller.stands_at = None


_LINES = process.begin_anew(Lines.begin)


class ScopedSlots:
    """Gets the slots for scoped requests of one process on one shaper; within a scope in order of arrival.

    When a hold ends, requests of other processes may be first: a request that waits for a scope has no slot
    yet.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._clock = core.store.clock
        self._status = core.status
        self._lines = Lines()
        self.begin()
        forgets(self, ScopedSlots.begin)

    def begin(self) -> None:
        """Start with nothing learned: at first, and where virtual time begins or ends."""
        self.scopes = Scopes()

    async def hold(self, driver: Driver, length_s: float, key: str, scope: str) -> None:
        """Hold a scope of a key, as `Shaper.hold` holds a key."""
        held_s = await self._core.hold(driver, length_s, scoped(key, scope))
        now = self._clock.now_us()
        self.scopes.hear(key, scope, now + round(held_s * SECOND_US), now)

    async def kept(
        self, driver: Driver, taken: Reservation, target: Target, late_us: int = 0, /, **waits: Any
    ) -> Reservation:
        """The slot that a call has waited for while a scope became known; another slot if the call's own
        scope is held. Reports the departure; `late_us` is how long ago the slot came.
        """
        return await self.schedule(
            driver, taken.key, target, taken.cost, taken=taken, late_us=late_us, **waits
        )

    async def schedule(
        self,
        driver: Driver,
        key: str,
        target: Target,
        cost: int,
        *,
        max_wait: Duration | None = AS_CONFIGURED,
        timeout: Duration | None = None,  # noqa: ASYNC109 - as for the shaper's
        permit: Permit | None = None,
        before_us: int = 0,
        taken: Reservation | None = None,
        late_us: int = 0,
    ) -> Reservation:
        """`Shaper.schedule` that also obeys holds of the target's scope, for a call that has already waited
        for `before_us`.

        The call takes the `permit` if it does not have it yet, and gives it back while it waits for its
        scope. After an error, the caller of this method gives it back.
        """
        core = self._core
        if SWITCH.offs:
            return taken or await core.reserve(driver, key, cost, core.max_wait_us)
        if not taken:
            await driver.stop_if_cancelled()
            await core.checked(driver, key, cost)
        bound_us = core.max_wait_us if max_wait is AS_CONFIGURED else max_wait_us(max_wait)
        gives_up_us = timeout_us(timeout)
        waited_us, loop = taken.grant.wait_us if taken else 0, driver.loop()
        caller = Caller(core, self.scopes, key, target, cost, bound_us, gives_up_us, loop, permit, waited_us)
        caller.waits_for_quotas = not isinstance(max_wait, Fits)
        try:
            if taken:
                caller.reservation, caller.had_slot = taken, True
                if await self._looked(driver, caller):
                    waited_us = max(0, self._clock.now_us() - caller.asked_us)
                    core.reporter.departed(key, cost, before_us + waited_us, late_us)
                    return taken
                await driver.shielded(partial(self._give_back, driver, caller))
            driver.may_be_thrown()
            while True:
                reservation = await self._taken(driver, caller)
                self._lines.leave(caller)
                self._stand(caller, reservation)
                await core.budgets.look(driver, key)
                if caller.has_looked or not reservation.grant.held or await self._looked(driver, caller):
                    pending = await core.waiter.stay(driver, reservation, caller.left_us, caller.time_left_us)
                    if await self._is_free_to_leave(driver, caller, reservation, pending):
                        break
                await driver.shielded(partial(self._give_back, driver, caller))
                caller.has_waited = True
        except BaseException as error:
            leave = partial(self._lines.leave, caller)
            await driver.given_back(error, partial(self._give_up, driver, caller, error), leave)
            raise
        delay_us, late_us = pending.waited_us(caller.asked_us)
        core.reporter.departed(key, cost, before_us + delay_us, late_us)
        return caller.late(reservation)

    async def _give_up(self, driver: Driver, caller: Caller, error: BaseException) -> None:
        """Give the slot back; a refusal is raised with the whole wait as its delay."""
        self._lines.leave(caller)
        with suppress(StoreUnavailableError):
            await self._give_back(driver, caller)
        restated = error
        if isinstance(error, QueueFullError):
            restated = self._core.accounts.named(caller.restated(error))
        self._core.reporter.ended(
            caller.key, caller.cost, restated, had_slot=caller.had_slot, returned=caller.is_returned
        )
        try:
            if restated is not error:
                raise restated.with_traceback(error.__traceback__) from error.__cause__
        finally:
            del restated  # its traceback holds this frame

    async def _taken(self, driver: Driver, caller: Caller) -> Reservation:
        """Take a slot once the scope is free and earlier requests have theirs."""
        core, lines, is_instant = self._core, self._lines, self._status.instant
        while True:
            if not is_instant:
                lines.join(caller)  # before the question: answers may come in any order
            caller.look_up()
            # With a remote store, to look is a trip: the slot shows whether it is needed.
            caller.has_looked = is_instant or caller.has_waited or self._has_heard(caller)
            if caller.has_looked and not await self._looked(driver, caller):
                lines.join(caller)
                sleeps_until_us = caller.sleeps_until_us()
                if not caller.has_waited:
                    if caller.max_wait_us is not None:
                        # Refuse now what would be refused a slot after it has waited for the scope.
                        looked = await driver.ask(core.look, caller.key)
                        first_in = core.outlook(caller.key, looked, 1, caller.cost).first_in
                        caller.check_wait(round(first_in * SECOND_US), caller.key)
                    caller.has_waited = True
                if caller.permit is not None:
                    await caller.permit.permits.leave(driver, caller.permit)
                await self._sleep(driver, caller, sleeps_until_us)
            elif not lines.is_first(caller, alarm := driver.alarm()):
                await driver.wait(alarm, STUCK_S)
            else:
                if not is_instant and not caller.has_waited and not caller.is_behind:
                    # No hold is known: requests that come together share a trip, as other calls do.
                    lines.leave(caller)
                left_us = caller.look_at_clock()
                if (permit := caller.permit) is None or not permit.is_over:
                    return await core.reserve_untold(driver, caller.key, caller.cost, left_us)
                # That may take long: afterwards the scope has to be checked again.
                leave = partial(lines.leave, caller)  # calls that wait for permits have their own line
                await permit.permits.take(driver, permit, caller.left_us, caller.time_left_us, leave)

    async def _is_free_to_leave(
        self, driver: Driver, caller: Caller, reservation: Reservation, pending: PendingWait
    ) -> bool:
        is_instant, due_us = self._status.instant, self._clock.now_us()
        caller.look_up()
        if not is_instant and not pending.is_marked and not self._has_heard(caller):
            return True
        is_free = await self._looked(driver, caller)
        if is_free and reservation.grant.wait_us and not is_instant:
            # An answer may wake several requests in any order: they leave in the order of their slots.
            await driver.let_earlier_go(self._core.sleepers, due_us, pending.order)
        return is_free

    async def _sleep(self, driver: Driver, caller: Caller, until_us: int) -> None:
        """Sleep until `until_us`, unless something changes at the scopes before."""
        if caller.poller is None or caller.watched != caller.scopes:
            keys, now = caller.scoped_keys(), self._clock.now_us()
            caller.poller = KeyPoller(self._status, keys, now, self.scopes.learned)
            caller.watched = caller.scopes
        poller = caller.poller
        while not poller.is_time(now := self._clock.now_us()) and now < until_us:
            alarm = driver.alarm()
            poller.begin_wait(alarm)
            try:
                sleeps_until_us = min(until_us, poller.until_us(caller.held_until_us))
                await driver.sleep(self._core.sleepers, sleeps_until_us, caller.number, news=alarm)
            finally:
                poller.end_wait(alarm)

    def _has_heard(self, caller: Caller) -> bool:
        """Whether this process knows of a hold on one of the caller's scopes."""
        now, held_until_us = self._clock.now_us(), self.scopes.heard_until_us
        return any(held_until_us(caller.key, scope, 0) > now for scope in caller.scopes)

    async def _looked(self, driver: Driver, caller: Caller) -> bool:
        """Ask the store whether all of the caller's scopes are free."""
        caller.look_up()
        if caller.poller is not None and caller.still_waits:
            key_states = await caller.poller.look(driver)
        else:
            key_states = [await self._status.ask(driver, key) for key in caller.scoped_keys()]
        known, now = self.scopes, self._clock.now_us()
        caller.held_until_us = 0
        for scope, key_state in zip(caller.scopes, key_states, strict=True):
            until_us = key_state.until_us + key_state.ahead_us
            if until_us > max(now, known.heard_until_us(caller.key, scope, 0) + FRESH_US):
                # So the next call need not take a slot to find out.
                known.hear(caller.key, scope, until_us, now, is_own=False)
            if not self._status.instant:
                # The answer may be older than a hold that this process has placed.
                until_us = max(until_us, known.heard_until_us(caller.key, scope, now - FRESH_US))
            caller.held_until_us = max(caller.held_until_us, until_us)
        if caller.held_until_us > now and not caller.is_sure:
            caller.unsure_until_us = caller.unsure_until_us or caller.held_until_us
            caller.held_until_us = min(caller.held_until_us, caller.unsure_until_us)
        return caller.held_until_us <= now

    def _stand(self, caller: Caller, reservation: Reservation) -> None:
        """Note a slot that was taken, or raise the error for a refusal. Only the first slot is reported."""
        if not reservation:
            raise refusal(reservation, caller.left_us)
        caller.reservation, caller.is_returned = reservation, False
        if not caller.had_slot:
            caller.had_slot = True
            self._core.reporter.reserved(reservation)

    async def _give_back(self, driver: Driver, caller: Caller) -> None:
        reservation, caller.reservation = caller.reservation, None
        if reservation is not None:
            caller.is_returned = await self._core.give_back(driver, reservation)
