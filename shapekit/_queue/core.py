"""Core: the parts of one shaper, and the flows of its calls: reserve, leave, give back, settle, hold.

Each flow is written once, for threads and event loops (see `drivers`). While shaping is on and there are no
listeners, a shaper calls the store directly and skips these flows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from shapekit._queue.key_status import AT_ONCE_US, KeyStatus, notice_us
from shapekit._queue.reporter import Budgets, Reporter
from shapekit._queue.reservation import Outlook, Reservation
from shapekit._queue.waiter import PendingWait, Waiter, refusal
from shapekit._runtime import forks
from shapekit._runtime.drivers import Alarm, Driver, Sleepers, ThreadCall, Twin, Workers, run
from shapekit._runtime.switch import SWITCH
from shapekit.algorithms.base import check_cost
from shapekit.algorithms.queue.moves import followed
from shapekit.algorithms.queue.queue import (
    CANCEL,
    HELD_US,
    HOLD,
    LOOK,
    MARK,
    RESERVE,
    RESUME,
    SETTLE,
    LeakyQueue,
)
from shapekit.algorithms.queue.slots import ACCEPTED, WAIT_US, Grant, Granted
from shapekit.clock import VIRTUAL, Clock, RealClock, forgets
from shapekit.errors import (
    AccountExhaustedError,
    ConfigError,
    QueueFullError,
    RateLimitedError,
    StoreUnavailableError,
)
from shapekit.keys import whole_of
from shapekit.rate import MAX_COUNT, SECOND_US, Duration, duration_us, whole
from shapekit.stores.base import Store

if TYPE_CHECKING:
    from shapekit._queue.prefetch import Prefetch

__all__ = ["Accounts", "Core"]

_FORESEEN_AT_ONCE = 200
"""The most calls that a forecast plays on the event loop; more of them take up to 0.2 s, on a thread."""


class Core:
    """Internal to this package; may change at any time."""

    def __init__(
        self,
        name: str,
        queue: LeakyQueue,
        store: Store,
        max_wait_us: int | None,
        chunk_s: float,
        prefetch: Duration | None,
    ) -> None:
        self.name = name
        self.queue = queue
        self.store = store
        self.clock = store.clock
        self.max_wait_us = max_wait_us
        kind = _RealSleepers if isinstance(store.clock, RealClock) else Sleepers
        self.sleepers = kind(store.clock, f"shaper {name!r}", chunk_s)
        store.wakes(self.sleepers)
        self.prefetch: Prefetch | None = None
        self.status = KeyStatus(store, name, queue)
        if prefetch is not None:
            from shapekit._queue.prefetch import prefetched  # noqa: PLC0415 - for prefetch only

            self.prefetch, self.status = prefetched(name, store, queue, prefetch)
        self.accounts = Accounts(store.clock)
        self.reporter = Reporter(name, store.clock, self.sleepers)
        store.settings(name).listen(self.reporter.overrides_changed)
        self.budgets = Budgets(name, queue, store, self.reporter.listeners)
        self.waiter = Waiter(name, queue, store, self.sleepers, self.status, self.reporter)
        bound, changing = (name, queue), self.status.changing
        self.grant = store.twin(*bound, RESERVE) if self.prefetch is None else self.prefetch.grant
        self.look = store.twin(*bound, LOOK)
        self._cancel = store.twin(*bound, CANCEL)
        self._settle = store.twin(*bound, SETTLE)
        self._hold = changing(store.twin(*bound, HOLD))
        self._mark = store.twin(*bound, MARK)
        self._resume = changing(store.twin(*bound, RESUME))
        self._reset = changing(Twin(partial(store.reset, *bound), partial(store.areset, *bound)))
        forgets(self.reporter, Reporter.begin)
        forgets(self.budgets, Budgets.begin)

    def check(self, key: str, cost: int) -> None:
        """Raise ConfigError or CostExceedsLimitError for arguments that the store need not be asked about."""
        checked_key(key)
        check_cost(cost, self.queue.max_cost, key, "limit", self.name)

    # reserving

    async def reserve(self, driver: Driver, key: str, cost: int, bound_us: int | None) -> Reservation:
        """Reserve a slot, and tell the listeners whether it was granted or refused."""
        try:
            reservation = await self.reserve_untold(driver, key, cost, bound_us)
        except StoreUnavailableError as error:
            self.reporter.failed(key, error)
            raise
        try:
            if reservation.accepted:
                self.reporter.reserved(reservation)
            elif self.reporter.listeners:
                self.reporter.refused(key, cost, refusal(reservation, bound_us))
            await self.budgets.look(driver, key)
        except BaseException as error:
            if reservation.accepted:
                await driver.given_back(error, partial(self.waiter.give_up, driver, reservation, error))
            raise
        return reservation

    async def reserve_untold(self, driver: Driver, key: str, cost: int, bound_us: int | None) -> Reservation:
        """`reserve` without events, for a flow that reports the whole call itself."""
        if SWITCH.is_off:
            return Reservation(self, key, _unshaped(cost))
        return Reservation(self, key, await driver.ask(self.grant, key, (cost, bound_us, forks.fresh_id())))

    async def take(self, driver: Driver, key: str, cost: int) -> Reservation | None:
        """`reserve` for a call that leaves as soon as it may; None if it has left at once."""
        reservation = await self.reserve(driver, key, cost, self.max_wait_us)
        if not reservation.leaves_now:
            return reservation
        await self.waiter.leave(driver, reservation, None, None)
        return None

    def taker(self, key: str, cost: int) -> Callable[[], Reservation | None]:
        """`take` for threads, prepared for calls with the same arguments; a call that has to wait continues
        with `leave`.
        """
        self.check(key, cost)
        grant, bound_us = self.grant.call, self.max_wait_us

        def take() -> Reservation | None:
            if SWITCH.loud:
                return run(self.take, key, cost)
            granted: Granted = grant(key, (cost, bound_us, forks.fresh_id()))
            # A plain tuple: most of these calls leave at once and need no Reservation.
            return None if granted[ACCEPTED] and not granted[WAIT_US] else Reservation(self, key, granted)

        return take

    async def leave(self, driver: Driver, reservation: Reservation) -> None:
        """Sleep until the slot comes, or raise the error of a refusal."""
        await self.waiter.leave(driver, reservation, self.max_wait_us, None)

    async def measure(
        self, driver: Driver, key: str, cost: int, bound_us: int | None, *, code: str | None = None
    ) -> Reservation:
        """Reserve for a call that passes at once whatever the answer.

        `code` is that of an error by which the call would have been refused already.
        """
        await driver.stop_if_cancelled()
        with self.reporter.watching(key):
            reservation = await self.reserve_untold(driver, key, cost, bound_us)
        if not reservation and code is None:
            code = refusal(reservation, bound_us).code
        self.reporter.measured(key, cost, reservation.delay, code)
        await self.budgets.look(driver, key)
        return reservation

    # giving back and settling

    async def cancel(self, driver: Driver, reservation: Reservation) -> bool:
        """Give a slot back. False, without effect, if it has passed or was given back already."""
        if not reservation.accepted:
            return False
        with self.reporter.watching(reservation.key):
            is_returned = await self._cancelled(driver, reservation)
        if is_returned:
            self.reporter.cancelled(reservation)
        return is_returned

    async def give_back(self, driver: Driver, reservation: Reservation) -> bool:
        """Give back the slot of a call that never leaves; if it has passed, settle it at a cost of 0."""
        if await self._cancelled(driver, reservation):
            return True
        return await self._settled(driver, reservation, 0) > 0

    async def _cancelled(self, driver: Driver, reservation: Reservation) -> bool:
        is_returned = bool(await driver.ask(self._cancel, reservation.key, reservation.grant))
        if not is_returned and (grant := await self._moved(driver, reservation)):
            is_returned = bool(await driver.ask(self._cancel, reservation.key, grant))
        return is_returned

    async def _moved(self, driver: Driver, reservation: Reservation) -> Grant | None:
        """The grant of a call that has moved since, because an operator has changed the limit."""
        if not self.store.settings(self.name).known.stored.version:
            return None
        return followed(reservation.grant, (await self.status.ask(driver, reservation.key)).changes)

    async def settle(
        self, driver: Driver, reservation: Reservation, actual: int, *, is_told: bool = True
    ) -> int:
        """Correct the cost of a call to what it turned out to be; returns the reservation's new number, or 0
        if nothing was done.
        """
        with self.reporter.watching(reservation.key):
            follows = await self._settled(driver, reservation, actual)
        if follows and is_told and actual != reservation.cost:
            self.reporter.settled(reservation, actual)
        return follows

    async def _settled(self, driver: Driver, reservation: Reservation, actual: int) -> int:
        cost, said = whole("actual", actual, least=0), forks.fresh_id()
        follows = int(await driver.ask(self._settle, reservation.key, (reservation.grant, cost, said)))
        if not follows and (grant := await self._moved(driver, reservation)):
            follows = int(await driver.ask(self._settle, reservation.key, (grant, cost, said)))
        return follows

    # holding

    async def hold(self, driver: Driver, length: Duration, key: str) -> float:
        """Hold a key; returns how many seconds it is held from now."""
        length_us, whole_key = duration_us("length", length), whole_of(checked_key(key))
        with self.reporter.watching(key):
            if whole_key is not None:
                # The mark comes first: if the hold then fails, calls only check the scope in vain.
                await driver.ask(self._mark, whole_key, length_us, forks.fresh_id())
            held_us: int = await driver.ask(self._hold, key, length_us, forks.fresh_id())
        if held_us == length_us:
            self.reporter.held(key, held_us)
        return held_us / SECOND_US

    async def exhausted(self, driver: Driver, length_s: float, key: str) -> None:
        """Hold a key because the server says that its account has nothing left to spend."""
        length_us = round(length_s * SECOND_US)
        # Told first: it is as true while the store does not answer.
        if self.accounts.exhausted(key, length_us):
            self.reporter.exhausted(key, length_us)
        await self.hold(driver, length_s, key)

    async def resume(self, driver: Driver, key: str) -> float:
        """End a hold; returns how many seconds the key stays held, so that every waiting call hears of it."""
        if self.status.hears_all:
            ends_in_us = AT_ONCE_US
            checked_key(key)
        else:
            ends_in_us = notice_us(await self._held_us(driver, key))
        with self.reporter.watching(key):
            left_us: int = await driver.ask(self._resume, key, ends_in_us)
        self.accounts.forget(key)
        if left_us == ends_in_us:
            self.reporter.resumed(key, left_us)
        return left_us / SECOND_US

    async def held(self, driver: Driver, key: str) -> float:
        """How many seconds a key is still held; 0 if it is not."""
        held_us = await self._held_us(driver, key)
        if not held_us and self.queue_of(key).is_held:
            held_us = HELD_US  # its first call begins the hold
        return held_us / SECOND_US

    async def _held_us(self, driver: Driver, key: str) -> int:
        with self.reporter.watching(checked_key(key)):
            key_state = await self.status.ask(driver, key)
        return max(0, key_state.until_us + key_state.ahead_us - self.clock.now_us())

    async def remaining(self, driver: Driver, reservation: Reservation) -> float:
        """Seconds until a slot comes, including holds placed since; negative once it has passed."""
        with self.reporter.watching(reservation.key):
            key_state = await self.status.ask(driver, reservation.key)
        pending = PendingWait(self.clock, reservation, key_state.ahead_us, None, None)
        pending.hear(key_state)
        return (pending.due_us - self.clock.now_us()) / SECOND_US

    # looking

    async def forecast(self, driver: Driver, calls: int, key: str, cost: int) -> Outlook:
        """When the given number of further calls would leave."""
        self.check(key, cost)
        whole("calls", calls, most=MAX_COUNT)
        with self.reporter.watching(key):
            look = partial(self.outlook, key, await driver.ask(self.look, key), calls, cost)
            if calls <= _FORESEEN_AT_ONCE or not self.queue_of(key).constraints.algorithms:
                return look()
            return await driver.ask(Twin(look, partial(ThreadCall(look, lambda _: None).run, Workers())))

    def queue_of(self, key: str) -> LeakyQueue:
        """Whose numbers a key goes by, as far as this process knows: the shaper's, or an operator's."""
        queue: LeakyQueue = self.store.settings(self.name).program(self.queue, key)
        return queue

    def outlook(self, key: str, looked: tuple[Any, int, int], calls: int, cost: int) -> Outlook:
        """When further calls would leave, from the state that a look has read."""
        state, now, skew = looked
        queue = self.queue_of(key)
        check_cost(cost, queue.max_cost, key, "limit", self.name)
        first, last = queue.outlook(state, now, calls, cost, skew)
        return Outlook(first / SECOND_US, last / SECOND_US)

    # forgetting

    async def reset(self, driver: Driver, key: str) -> None:
        """Reset a key."""
        with self.reporter.watching(checked_key(key)):
            await driver.ask(self._reset, key)
        self.accounts.forget(key)
        self.reporter.was_reset(key)

    async def close(self, driver: Driver, store: Store | None) -> None:
        """Wake all waiting calls, give back prefetched slots, and close the store if one is given."""
        self.sleepers.close()
        if self.prefetch is not None:
            await driver.ask(Twin(self.prefetch.close, self.prefetch.aclose))
        if store is not None:
            await driver.ask(Twin(store.close, store.aclose))


MOST_KEYS = 1_024
"""How many keys are remembered; the calls of a forgotten key are refused with QueueFullError."""
SLACK_US = SECOND_US
"""By how much two instants may differ that are the same: the clock of the store may run differently."""


class Accounts:
    """The keys of one shaper whose accounts are exhausted, as servers have told this process; thread-safe.

    The hold itself is in the store, and all processes obey it. Why the key is held is known only to those
    that have heard it: they refuse calls with AccountExhaustedError, the others with QueueFullError.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = forks.lock()
        self.begin()
        forgets(self, Accounts.begin)

    def begin(self) -> None:
        """Nothing was heard yet."""
        self._until_us: dict[str, int] = {}

    def exhausted(self, key: str, length_us: int) -> bool:
        """Note that a key is held for its account; False if the answer to another call has said so."""
        with self._lock:
            now = self._clock.now_us()
            before, until = self._until_us.pop(key, now), now + length_us
            if len(self._until_us) >= MOST_KEYS:
                del self._until_us[next(iter(self._until_us))]
            self._until_us[key] = max(before, until)
        return until > before + SLACK_US

    def forget(self, key: str) -> None:
        """The hold of a key was ended, or the key was reset."""
        with self._lock:
            self._until_us.pop(key, None)

    def named(self, error: QueueFullError) -> RateLimitedError:
        """The refusal of a call that would wait for an exhausted account; any other stays what it is."""
        until_us = self._until_us.get(error.key)
        if until_us is None:
            return error
        left_us = until_us - self._clock.now_us()
        # No call waits any more for a hold that another process has ended.
        if left_us <= 0 or error.delay * SECOND_US + SLACK_US < left_us:
            return error
        return AccountExhaustedError(error.decision, error.key, error.policy)


class _RealSleepers(Sleepers):
    """Those of a shaper whose store counts by a clock that virtual time does not move."""

    def _enter(self, alarm: Alarm) -> None:
        if VIRTUAL.is_on:
            raise ConfigError(
                "store",
                self._what,
                "would wait in real time: virtual time does not move the clock of its store",
                "give it a MemoryStore in this test, or mark the test shapekit_real_time",
            )
        super()._enter(alarm)


def checked_key(key: str) -> str:
    """Return the key; ConfigError if it is not text."""
    if not isinstance(key, str):
        raise ConfigError("key", key, "is not text", 'pass a str such as "default"')
    return key


def _unshaped(cost: int) -> Grant:
    """The grant while shaping is switched off: leave at once, in no generation."""
    return Grant(True, 0, 0, False, None, cost, -1, 0, 0, 0, 0, (0, 0), ())
