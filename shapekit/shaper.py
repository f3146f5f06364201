"""Shaper: a leaky bucket on a store, which tells each call when it may leave.

Reservation: a slot that a shaper has granted, or its refusal. It can be serialized to plain values and
continued in another process. Outlook: a forecast of slots.

Core: the parts of one shaper, and the flows of its calls: reserve, leave, give back, settle, hold. Each flow
is written once, for threads and event loops (see `drivers`). While shaping is on and there are no listeners,
a shaper calls the store directly and skips these flows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self

from shapekit._queue.adaptive import AdaptiveRate, queue_between
from shapekit._queue.moving import AT_ONCE_US, notice_us
from shapekit._queue.reporter import Accounts, Budgets, Reporter
from shapekit._queue.waiter import Coming, KeyStatus, Waiter, refusal
from shapekit._runtime import process
from shapekit._runtime.drivers import (
    TASKS,
    Driver,
    Twin,
    may_be_cancelled,
    on_thread,
    run,
    stop_if_cancelled,
)
from shapekit._runtime.process import SWITCH
from shapekit.algorithms.base import NEVER_US, Algorithm, as_tuple, check_cost
from shapekit.algorithms.queue.adaptive import Adaptive
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import (
    ACCEPTED,
    COST,
    DEPARTS_AT_US,
    QUEUE,
    REFUSAL,
    WAIT_US,
    Grant,
    Granted,
    followed,
)
from shapekit.algorithms.queue.wire import CANCEL, HOLD, LOOK, MARK, RESERVE, RESUME, SETTLE
from shapekit.clock import CHUNK_S, Clock, Sleepers
from shapekit.decision import Decision
from shapekit.errors import ConfigError, CostExceedsLimitError, StoreUnavailableError
from shapekit.events import Listener, Listening
from shapekit.gate import checked_name
from shapekit.keys import text_of, whole_of
from shapekit.rate import (
    AS_CONFIGURED,
    MAX_COUNT,
    SECOND_US,
    Duration,
    Rate,
    RateLike,
    asked_wait_us,
    duration_us,
    max_wait_us,
    parse_rates,
    timeout_us,
    whole,
)
from shapekit.stores import StoreLike, open_store
from shapekit.stores.base import Store, check_in_force

__all__ = ["Core", "Outlook", "Reservation", "Shaper", "received", "sent"]


UNPACED: Any = object()
"""In place of a rate: calls leave at once, unless the key is held."""
_ONE = 1


class Shaper:
    """Makes calls leave at `rate`: delays them, or refuses at once when the wait would be too long.

        >>> from shapekit import Shaper
        >>> shaper = Shaper("10/s")
        >>> [shaper.reserve("stripe").accepted for _ in range(2)]
        [True, True]

    Most callers want `schedule`, which reserves and sleeps until the slot comes, or `with shaper:`.
    `reserve` only reserves. First come, first served: no waiting call overtakes another. Each method has
    an awaitable twin with an `a` in front; threads, asyncio and trio may share one shaper.

    - `rate`: one rate or several, `"10/s; 100/min"`. The one with the shortest period is paced, the
      others bound every window of their period.
    - `burst`: how many calls may leave at once after an idle time.
    - `max_wait`: a longer wait is refused with QueueFullError. `0` means now or never, None without a bound.
      It is the default of every call.
    - `pace="burst"`: not evenly spaced, but as fast as the windows allow.
    - `gates`: further strategies that every call has to pass. A spent `Quota`, also inside a composite,
      refuses with QuotaExhaustedError unless an explicit `max_wait` covers the wait.
    - `headroom=0.02`: shape 2 % below the stated rates; arrivals jitter on their way.
    - `prefetch="1s"`: for a distant store. A busy worker takes up to a second's worth of slots on one trip,
      hands them out at their times, and gives back the rest. The slots of a worker that dies are lost, and
      a hold by another process is noticed after a second at most.
    - `adaptive`: instead of a rate, the bounds of one that is found from the outcomes of calls. A Policy
      reports them by itself; other code reports them to `shaper.adaptive`.
    - `store`: a store, the URL of a Redis, or the path of a SQLite file; without one, this process's memory.
    - `longest_sleep`: long waits are slept in steps of at most this.
    """

    def __init__(
        self,
        rate: RateLike | None = None,
        *,
        burst: int | None = None,
        max_wait: Duration | None = None,
        pace: str = "smooth",
        gates: Sequence[Algorithm[Any]] = (),
        store: StoreLike | None = None,
        clock: Clock | None = None,
        name: str | None = None,
        headroom: float = 0.0,
        prefetch: Duration | None = None,
        adaptive: Adaptive | None = None,
        longest_sleep: Duration = CHUNK_S,
    ) -> None:
        if adaptive is not None:
            beside = {"rate": rate, "gates": gates, "headroom": headroom, "prefetch": prefetch}
            queue: LeakyQueue = queue_between(adaptive, burst, pace, **beside)
        elif rate is None and not gates:
            raise ConfigError("rate", rate, "is missing", 'write Shaper("10/s")')
        else:
            rates = () if rate is None or rate is UNPACED else checked_rates(rate, "Shaper")
            queue = LeakyQueue(rates, burst, pace, _strategies(gates), headroom)
            if not rates and (queue.headroom or pace != "smooth"):
                option, value = ("headroom", headroom) if queue.headroom else ("pace", pace)
                raise ConfigError(option, value, "has no rate to apply to", "leave it out, or give a rate")
        opened, is_own = open_store(store, clock)
        self._own_store = opened if is_own else None
        self.name = checked_name(name, opened, "shaper")
        """The name under which the store keeps the shaper's keys."""
        self._max_wait_us = max_wait_us(max_wait)
        chunk_s = duration_us("longest_sleep", longest_sleep) / SECOND_US
        self.core = Core(self.name, queue, opened, self._max_wait_us, chunk_s, prefetch)
        self._adaptive = AdaptiveRate(self.core) if queue.adapts else None
        # Bound once, for the path of every call.
        self._check, self._waiter = self.core.check, self.core.waiter
        # The store's answer is timed, as it may come after the slot; an instant store's answer cannot.
        self._now_us = None if opened.instant else opened.clock.now_us
        self._grant, self._agrant = self.core.grant.call, self.core.grant.acall

    @property
    def adaptive(self) -> AdaptiveRate:
        """The adaptive rate, if `adaptive=` was given: its present value, and where outcomes are reported."""
        if self._adaptive is None:
            fix = "use Shaper(adaptive=…)"
            raise ConfigError("adaptive", None, "is not set: this shaper has a fixed rate", fix)
        return self._adaptive

    def reserve(
        self, key: str = "default", *, cost: int = 1, max_wait: Duration | None = AS_CONFIGURED
    ) -> Reservation:
        """Take the earliest slot, or be refused and consume nothing. Does not wait."""
        if cost is not _ONE or key.__class__ is not str:
            try:
                key = self._check(key, cost)
            except CostExceedsLimitError as error:
                key = run(self.core.allowed, error)
        bound_us = self._max_wait_us if max_wait is AS_CONFIGURED else asked_wait_us(max_wait)
        if SWITCH.loud:
            return run(self.core.reserve, key, cost, bound_us)
        return Reservation(self.core, key, self._grant(key, (cost, bound_us, process.fresh_id())))

    async def areserve(
        self, key: str = "default", *, cost: int = 1, max_wait: Duration | None = AS_CONFIGURED
    ) -> Reservation:
        """`reserve`, awaitable."""
        if self._now_us is None:  # else the store is awaited, which is a point of cancellation
            if may_be_cancelled():
                await stop_if_cancelled()
            return self.reserve(key, cost=cost, max_wait=max_wait)
        if cost is not _ONE or key.__class__ is not str:
            key = await self.core.checked(TASKS, key, cost)
        bound_us = self._max_wait_us if max_wait is AS_CONFIGURED else asked_wait_us(max_wait)
        if SWITCH.loud:
            return await self.core.reserve(TASKS, key, cost, bound_us)
        return Reservation(self.core, key, await self._agrant(key, (cost, bound_us, process.fresh_id())))

    def schedule(
        self,
        key: str = "default",
        *,
        cost: int = 1,
        max_wait: Duration | None = AS_CONFIGURED,
        timeout: Duration | None = None,
    ) -> Reservation:
        """Take the earliest slot and sleep until it comes.

        Raises QueueFullError or QuotaExhaustedError at once if the slot is too far away, and TimeoutError
        after `timeout`. A call that stops waiting, for whatever reason, gives its slot back.
        """
        gives_up_us = None if timeout is None else timeout_us(timeout)
        asked_us = self._now_us and self._now_us()
        reservation = self.reserve(key, cost=cost, max_wait=max_wait)
        granted = reservation.granted
        is_slow = asked_us is not None and not self._waiter.is_prompt(granted, asked_us)
        if granted[WAIT_US] or is_slow or not granted[ACCEPTED]:
            bound_us = self._max_wait_us if max_wait is AS_CONFIGURED else max_wait_us(max_wait)
            run(self._waiter.wait, reservation, bound_us, gives_up_us, is_slow=is_slow, tells=True)
        elif SWITCH.loud:
            self.core.reporter.departed(reservation.key, reservation.cost)
        return reservation

    async def aschedule(
        self,
        key: str = "default",
        *,
        cost: int = 1,
        max_wait: Duration | None = AS_CONFIGURED,
        timeout: Duration | None = None,  # noqa: ASYNC109 - gives up the slot too, as the sync form does
    ) -> Reservation:
        """`schedule`, awaitable; a cancelled task gives its slot back."""
        gives_up_us = None if timeout is None else timeout_us(timeout)
        asked_us = self._now_us and self._now_us()
        is_slow = False
        if asked_us is None:
            if may_be_cancelled():
                await stop_if_cancelled()
            reservation = self.reserve(key, cost=cost, max_wait=max_wait)
        else:
            reservation = await self.areserve(key, cost=cost, max_wait=max_wait)
            is_slow = not self._waiter.is_prompt(reservation.granted, asked_us)
        granted = reservation.granted
        if granted[WAIT_US] or is_slow or not granted[ACCEPTED]:
            bound_us = self._max_wait_us if max_wait is AS_CONFIGURED else max_wait_us(max_wait)
            await self._waiter.wait(TASKS, reservation, bound_us, gives_up_us, is_slow=is_slow, tells=True)
        elif SWITCH.loud:
            self.core.reporter.departed(reservation.key, reservation.cost)
        return reservation

    def cancel(self, reservation: Reservation) -> bool:
        """Give a slot back, as `reservation.cancel()` does."""
        return run(self.core.cancel, checked_reservation(self.core, reservation))

    async def acancel(self, reservation: Reservation) -> bool:
        """`cancel`, awaitable."""
        return await self.core.cancel(TASKS, checked_reservation(self.core, reservation))

    def settle(self, reservation: Reservation, actual: int) -> bool:
        """Correct the cost of a call that has left to `actual`; 0 if it should not count.

        The difference is charged, even beyond the limit, or given back as far as no later slot depends on it.
        Units given back go to calls that have no slot yet; waiting calls keep theirs. Repeating a cost
        changes nothing; of several costs, the last one counts.
        """
        return run(self.core.settle, checked_reservation(self.core, reservation), actual) > 0

    async def asettle(self, reservation: Reservation, actual: int) -> bool:
        """`settle`, awaitable."""
        return await self.core.settle(TASKS, checked_reservation(self.core, reservation), actual) > 0

    def hold(self, length: Duration, *, key: str = "default") -> float:
        """Stop all calls of `key` for `length`, in every process; returns how many seconds it is held now.

        Waiting calls move by as much and keep their order, and the rate continues where it was. A longer
        hold that is already in place stays. With `prefetch=`, a hold lasts at least that long and a slot, so
        that each worker notices it before it ends.

        Calls that a hold moves to a later quota period or fixed window count there. If calls of several
        periods wait, a hold may move them into the same one, which then exceeds its limit.
        """
        return run(self.core.hold, length, key)

    async def ahold(self, length: Duration, *, key: str = "default") -> float:
        """`hold`, awaitable."""
        return await self.core.hold(TASKS, length, key)

    def resume(self, *, key: str = "default") -> float:
        """End a hold; returns for how many more seconds the key stays held, so that all waiting calls notice.

        In memory that is a quarter of a second. In a shared store it is a twelfth of the rest of the hold: at
        least 1.5 seconds, at most 90; and with `prefetch=`, that and a slot more. It is longer if waiting
        calls were moved to a later quota period or fixed window, and the current one has no room for them.
        """
        return run(self.core.resume, key)

    async def aresume(self, *, key: str = "default") -> float:
        """`resume`, awaitable."""
        return await self.core.resume(TASKS, key)

    def held(self, *, key: str = "default") -> float:
        """For how many more seconds a key is held; 0 if it is not."""
        return run(self.core.held, key)

    async def aheld(self, *, key: str = "default") -> float:
        """`held`, awaitable."""
        return await self.core.held(TASKS, key)

    def remaining(self, reservation: Reservation) -> float:
        """Seconds until a slot comes, with the holds placed since; negative once it has passed.

        For code that does not wait in `schedule`. The slot may have been reserved in another process.
        """
        return run(self.core.remaining, checked_reservation(self.core, reservation))

    async def aremaining(self, reservation: Reservation) -> float:
        """`remaining`, awaitable."""
        return await self.core.remaining(TASKS, checked_reservation(self.core, reservation))

    def forecast(self, calls: int = 1, *, key: str = "default", cost: int = 1) -> Outlook:
        """When `calls` more calls would leave, if all were made now and no others were.

        Takes some 0.2 s at most. If that is too short for so many calls, raises a ConfigError that names the
        bound, which is 5,000 calls or more; with rates, windows and one calendar quota there is mostly none.
        """
        return run(self.core.forecast, calls, key, cost)

    async def aforecast(self, calls: int = 1, *, key: str = "default", cost: int = 1) -> Outlook:
        """`forecast`, awaitable."""
        return await self.core.forecast(TASKS, calls, key, cost)

    def reset(self, key: str = "default") -> None:
        """Forget the key: its queue, hold and counts. Waiting calls keep their slots."""
        run(self.core.reset, key)

    async def areset(self, key: str = "default") -> None:
        """`reset`, awaitable."""
        await self.core.reset(TASKS, key)

    def __enter__(self) -> Self:
        self.schedule()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """The slot was used: nothing to give back."""

    async def __aenter__(self) -> Self:
        await self.aschedule()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """The slot was used: nothing to give back."""

    def listen(self, listener: Listener) -> Listening:
        """Add a listener for the events of this shaper; closing the returned `Listening` removes it."""
        return self.core.reporter.listeners.add(listener)

    def close(self) -> None:
        """Wake all waiting calls with StoreUnavailableError; close the store if this shaper made it."""
        run(self.core.close, self._own_store)

    async def aclose(self) -> None:
        """`close`, awaitable."""
        await self.core.close(TASKS, self._own_store)

    def __repr__(self) -> str:
        return f"Shaper({', '.join(limits_shown(self))}, name={self.name!r})"


class Outlook(NamedTuple):
    """When further calls would leave, in seconds from now."""

    first_in: float
    """When the first one leaves."""
    last_in: float
    """When the last one leaves."""


class Reservation:
    """A slot that was taken, or its refusal; true if accepted."""

    __slots__ = ("core", "granted", "key")

    core: Final[Core]
    key: Final[str]
    """The key whose limit the slot counts against."""
    granted: Granted  # replaced if the call misses a prefetched slot; nothing else changes

    def __init__(self, core: Core, key: str, granted: Granted) -> None:
        self.core = core
        self.key = key
        self.granted = granted

    @property
    def accepted(self) -> bool:
        """Whether a slot was taken."""
        return self.granted[ACCEPTED]

    def __bool__(self) -> bool:
        return self.granted[ACCEPTED]

    @property
    def grant(self) -> Grant:
        """Every detail of the grant, as plain values that another process can use."""
        return Grant(*self.granted)

    @property
    def queue(self) -> LeakyQueue:
        """The queue whose limits granted the slot: the shaper's own, or an operator's override of it."""
        return self.granted[QUEUE] or self.core.queue

    @property
    def cost(self) -> int:
        """The units reserved."""
        return self.granted[COST]

    @property
    def delay(self) -> float:
        """Seconds from the reservation to the departure; for a refusal, the wait that was refused."""
        return self.granted[WAIT_US] / SECOND_US

    @property
    def departs_at(self) -> float:
        """The promised departure, in epoch seconds on the store's clock."""
        return self.granted[DEPARTS_AT_US] / SECOND_US

    def costing(self, actual: int, number: int, *, is_placed: bool = True) -> Reservation:
        """The same slot after a settlement, under its new number.

        `is_placed` is false if the store did not answer an earlier settlement: the slot may no longer be in
        the queue.
        """
        end = self.queue.end_of(self.grant, actual) if is_placed else self.grant.start
        return Reservation(self.core, self.key, self.grant._replace(cost=actual, version=number, end=end))

    def after_waiting(self, wait_us: int) -> Reservation:
        """The same slot; its delay includes the time that its call waited before it reserved."""
        grant = self.grant
        return Reservation(self.core, self.key, grant._replace(wait_us=grant.wait_us + wait_us))

    @property
    def decision(self) -> Decision:
        """The same answer as a gate's Decision; `delay` is how far ahead the slot is."""
        return self.queue.decision(self.granted)

    @property
    def refusal(self) -> Decision | None:
        """The decision that refused the call; None if it was accepted."""
        return self.granted[REFUSAL]

    def cancel(self) -> bool:
        """Give the slot back. False, without effect, if it has passed or was given back already."""
        return run(self.core.cancel, self)

    async def acancel(self) -> bool:
        """`cancel`, awaitable."""
        return await self.core.cancel(TASKS, self)

    def __repr__(self) -> str:
        verdict = "accepted" if self else "refused"
        return f"Reservation({verdict}, key={self.key!r}, cost={self.cost}, delay={self.delay:.6f})"


def sent(reservation: Reservation) -> list[Any]:
    """Serialize an accepted reservation to plain values."""
    *plain, queue = reservation.grant
    if queue is None:
        return [reservation.key, *plain, None]
    from shapekit.stores.encoding import describe  # noqa: PLC0415 - only where something is set

    return [reservation.key, *plain, describe(queue)]


def received(core: Core, fields: list[Any]) -> Reservation:
    """Restore a reservation that `sent` has serialized, here or in another process with the same shaper."""
    key, *plain, described = fields
    grant = Grant(*map(as_tuple, plain))
    if described is not None:
        from shapekit.stores.encoding import revived  # noqa: PLC0415 - only where something is set

        grant = grant._replace(queue=revived(described))
    return Reservation(core, key, grant)


_FORESEEN_AT_ONCE = 200
"""The most calls that a forecast simulates on the event loop; more take up to 0.2 s, on a thread."""


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
        self.sleepers = Sleepers(store.clock, f"shaper {name!r}", chunk_s)
        store.wakes(self.sleepers)
        self.status = KeyStatus(store, name, queue)
        if prefetch is not None:
            from shapekit._queue.prefetch import prefetched  # noqa: PLC0415 - for prefetch only

            self.status.prefetch = prefetched(name, store, queue, prefetch, self.status.store_clock)
        self.prefetch = self.status.prefetch
        self._least_hold_us = 0 if self.prefetch is None else self.prefetch.least_hold_us
        self.accounts = Accounts(store.clock)
        self.reporter = Reporter(name, store.clock, self.sleepers)
        store.settings(name).listen(self.reporter.overrides_changed)
        bound, changing = (name, queue), self.status.changing
        self.grant = store.twin(*bound, RESERVE) if self.prefetch is None else self.prefetch.grant
        self.look = store.twin(*bound, LOOK)
        self.budgets = Budgets(self)
        self.waiter = Waiter(self)
        self._cancel = store.twin(*bound, CANCEL)
        self._settle = store.twin(*bound, SETTLE)
        self._hold = changing(store.twin(*bound, HOLD))
        self._mark = store.twin(*bound, MARK)
        self._resume = changing(store.twin(*bound, RESUME))
        self._reset = changing(Twin(partial(store.reset, *bound), partial(store.areset, *bound)))

    def check(self, key: str, cost: int) -> str:
        """The key as plain text; raises for a wrong key, or a cost above the limit in the code."""
        if key.__class__ is not str:
            key = text_of(key)
        check_cost(cost, self.queue.max_cost, key, "limit", self.name)
        return key

    async def checked(self, driver: Driver, key: str, cost: int) -> str:
        """`check`, by the limits in force: an operator's override may admit a higher cost."""
        try:
            return self.check(key, cost)
        except CostExceedsLimitError as error:
            return await self.allowed(driver, error)

    async def allowed(self, driver: Driver, error: CostExceedsLimitError) -> str:
        """The key of a call whose cost exceeds the limit in the code; raises `error`, unless an override
        admits the cost.
        """
        await check_in_force(driver, self.store, self.name, self.queue, error.key, error)
        return error.key

    # reserving

    async def reserve(self, driver: Driver, key: str, cost: int, bound_us: int | None) -> Reservation:
        """Reserve a slot, and tell the listeners whether it was granted or refused."""
        try:
            reservation = await self.reserve_untold(driver, key, cost, bound_us)
        except StoreUnavailableError as error:
            self.reporter.failed(key, error)
            raise
        try:
            if reservation:
                self.reporter.reserved(reservation)
            elif self.reporter.listeners:
                self.reporter.refused(key, cost, refusal(reservation, bound_us))
            if self.budgets.has_quotas:
                await self.budgets.look(driver, key)
        except BaseException as error:
            if reservation:
                await driver.given_back(error, partial(self.waiter.give_up, driver, reservation, error))
            raise
        return reservation

    async def reserve_untold(self, driver: Driver, key: str, cost: int, bound_us: int | None) -> Reservation:
        """`reserve` without events, for a flow that reports the whole call itself."""
        if SWITCH.offs:
            return Reservation(self, key, _unshaped(cost, self.store.clock.now_us()))
        return Reservation(self, key, await driver.ask(self.grant, key, (cost, bound_us, process.fresh_id())))

    def taker(self, key: str, cost: int) -> Callable[[], Reservation | None]:
        """`reserve` for threads, prepared for calls of one key and cost. A call that has a reservation
        continues with `leave`; None if it leaves at once, and no listener has to know.
        """
        key = self.check(key, cost)
        grant, bound_us = self.grant.call, self.max_wait_us

        def take() -> Reservation | None:
            if SWITCH.loud:
                return run(self.reserve, key, cost, bound_us)
            granted: Granted = grant(key, (cost, bound_us, process.fresh_id()))
            # A plain tuple: most of these calls leave at once and need no Reservation.
            return None if granted[ACCEPTED] and not granted[WAIT_US] else Reservation(self, key, granted)

        return take

    async def schedule(
        self,
        driver: Driver,
        key: str,
        cost: int,
        *,
        max_wait: Duration | None = AS_CONFIGURED,
        timeout: Duration | None = None,  # noqa: ASYNC109 - as for the shaper's
    ) -> tuple[Reservation, tuple[int, int]]:
        """`Shaper.schedule`, for a caller that reports the departure itself: also returns how long the call
        has waited, and how late it is.
        """
        await driver.stop_if_cancelled()
        key = await self.checked(driver, key, cost)
        asked_us, gives_up_us, is_own = self.clock.now_us(), timeout_us(timeout), max_wait is AS_CONFIGURED
        bound_us = self.max_wait_us if is_own else asked_wait_us(max_wait)
        reservation = await self.reserve(driver, key, cost, bound_us)
        is_slow = not self.waiter.is_prompt(reservation.granted, asked_us)
        bound_us = self.max_wait_us if is_own else max_wait_us(max_wait)
        return reservation, await self.waiter.wait(
            driver, reservation, bound_us, gives_up_us, is_slow=is_slow
        )

    async def leave(self, driver: Driver, reservation: Reservation) -> None:
        """Sleep until the slot comes, or raise the error of a refusal."""
        await self.waiter.wait(driver, reservation, self.max_wait_us, None, tells=True)

    async def measure(
        self, driver: Driver, key: str, cost: int, bound_us: int | None, *, code: str | None = None
    ) -> Reservation:
        """Reserve for a call that leaves at once whatever the answer, also if its cost can never be admitted.

        `code`: that of the error that would have refused the call before it reserved.
        """
        await driver.stop_if_cancelled()
        try:
            await self.checked(driver, key, cost)
            with self.reporter.watching(key):
                reservation = await self.reserve_untold(driver, key, cost, bound_us)
        except CostExceedsLimitError as error:
            never = Decision(False, error.limit, 0, 0, 0, NEVER_US)
            self.reporter.measured(key, cost, math.inf, error.code)
            return Reservation(self, key, Grant.refused(NEVER_US, 0, held=False, told=never, cost=cost))
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
        if self.prefetch is not None:
            return await self.prefetch.give_back(driver, reservation.key, _signed(reservation))
        if await self._cancelled(driver, reservation):
            return True
        return bool(await self._settled(driver, reservation, 0))

    async def _cancelled(self, driver: Driver, reservation: Reservation) -> bool:
        is_returned = bool(await driver.ask(self._cancel, reservation.key, reservation.grant))
        if not is_returned and (grant := await self._moved(driver, reservation)):
            is_returned = bool(await driver.ask(self._cancel, reservation.key, grant))
        return is_returned

    async def _moved(self, driver: Driver, reservation: Reservation) -> Grant | None:
        """The grant of a call that has moved since, because an operator has changed the limit."""
        if not self.store.settings(self.name).known.stored.version:
            return None
        changes = (await self.status.ask(driver, reservation.key)).changes
        return followed(_signed(reservation), changes, self.queue.constraints)

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
        cost, nonce = whole("actual", actual, least=0), process.fresh_id()
        follows = int(await driver.ask(self._settle, reservation.key, (_signed(reservation), cost, nonce)))
        if not follows and (grant := await self._moved(driver, reservation)):
            follows = int(await driver.ask(self._settle, reservation.key, (grant, cost, nonce)))
        return follows

    # holding

    async def hold(self, driver: Driver, length: Duration, key: str) -> float:
        """Hold a key; returns how many seconds it is held from now."""
        key = text_of(key)
        length_us, whole_key = duration_us("length", length), whole_of(key)
        length_us = max(length_us, self._least_hold_us)
        with self.reporter.watching(key):
            if whole_key is not None:
                # The mark comes first: if the hold then fails, calls only check the scope in vain.
                await driver.ask(self._mark, whole_key, length_us, process.fresh_id())
            held_us: int = await driver.ask(self._hold, key, length_us, process.fresh_id())
        if held_us == length_us:
            self.reporter.held(key, held_us)
        return held_us / SECOND_US

    async def exhausted(self, driver: Driver, length_s: float, key: str) -> None:
        """Hold a key because the server says that its account has nothing left to spend."""
        length_us = round(length_s * SECOND_US)
        # Reported first: it is just as true if the store does not answer.
        if self.accounts.exhausted(key, length_us):
            self.reporter.exhausted(key, length_us)
        await self.hold(driver, length_s, key)

    async def resume(self, driver: Driver, key: str) -> float:
        """End a hold; returns how many seconds the key stays held, so that every waiting call notices."""
        key = text_of(key)
        ends_in_us = AT_ONCE_US
        if not self.status.hears_all:
            ends_in_us = notice_us(await self._held_us(driver, key)) + self._least_hold_us
        with self.reporter.watching(key):
            left_us: int = await driver.ask(self._resume, key, ends_in_us)
        self.accounts.forget(key)
        if left_us == ends_in_us:
            self.reporter.resumed(key, left_us)
        return left_us / SECOND_US

    async def held(self, driver: Driver, key: str) -> float:
        """How many seconds a key is still held; 0 if it is not."""
        key = text_of(key)
        held_us = await self._held_us(driver, key)
        # The first call of a key begins the hold of an override.
        return (held_us or self.queue_of(key).held_us(self.clock.wall_us())) / SECOND_US

    async def _held_us(self, driver: Driver, key: str) -> int:
        with self.reporter.watching(key):
            key_state = await self.status.ask(driver, key)
        return max(0, key_state.until_us + key_state.ahead_us - self.clock.now_us())

    async def remaining(self, driver: Driver, reservation: Reservation) -> float:
        """Seconds until a slot comes, including holds placed since; negative once it has passed."""
        with self.reporter.watching(reservation.key):
            now_us, _, pending = await self.status.of_slot(driver, reservation)
        return (pending.due_us - now_us) / SECOND_US

    async def coming(
        self, driver: Driver, reservation: Reservation, grace_s: float, *, is_unused: bool = True
    ) -> Coming | None:
        """When the slot of a call that does not wait in `schedule` comes. If it passed more than `grace_s`
        ago, the next slot of the queue, if that comes soon; None if the call has to reserve anew.

        `is_unused`: whether it is known that no call has used the slot.
        """
        with self.reporter.watching(reservation.key):
            return await self.waiter.coming(
                driver, reservation, round(grace_s * SECOND_US), is_unused=is_unused
            )

    # looking

    async def forecast(self, driver: Driver, calls: int, key: str, cost: int) -> Outlook:
        """When the given number of further calls would leave."""
        key = await self.checked(driver, key, cost)
        whole("calls", calls, most=MAX_COUNT)
        with self.reporter.watching(key):
            look = partial(self.outlook, key, await driver.ask(self.look, key), calls, cost)
            if calls <= _FORESEEN_AT_ONCE or not self.queue_of(key).constraints.algorithms:
                return look()
            return await driver.ask(on_thread(look))

    def queue_of(self, key: str) -> LeakyQueue:
        """The queue that applies to a key, as far as this process knows: the shaper's, or an override's."""
        queue: LeakyQueue = self.store.settings(self.name).program(self.queue, key)
        return queue

    def outlook(self, key: str, looked: tuple[Any, int, int], calls: int, cost: int) -> Outlook:
        """When further calls would leave, from the state that `look` has read."""
        state, now, skew = looked
        queue = self.queue_of(key)
        check_cost(cost, queue.max_cost, key, "limit", self.name)
        first, last = queue.outlook(state, now, calls, cost, skew)
        return Outlook(first / SECOND_US, last / SECOND_US)

    # forgetting

    async def reset(self, driver: Driver, key: str) -> None:
        """Reset a key."""
        key = text_of(key)
        with self.reporter.watching(key):
            await driver.ask(self._reset, key)
        self.accounts.forget(key)
        self.reporter.was_reset(key)

    async def close(self, driver: Driver, store: Store | None) -> None:
        """Wake all waiting calls, give back prefetched slots, and close the store if one is given."""
        self.sleepers.close()
        await driver.shielded(partial(self.sleepers.given_back, driver))
        if self.prefetch is not None:
            await driver.ask(on_thread(self.prefetch.close))
        if store is not None:
            await driver.ask(Twin(store.close, store.aclose))


def _unshaped(cost: int, now_us: int) -> Grant:
    """The grant while shaping is switched off: leave at once, in no generation."""
    return Grant(True, 0, now_us, False, None, cost, -1, 0, 0, 0, 0, (0, 0), ())


def _signed(reservation: Reservation) -> Grant:
    """The grant with its own queue, as another one may apply by now."""
    return reservation.grant._replace(queue=reservation.queue)


def limits_shown(shaper: Shaper) -> list[str]:
    """The arguments that a shaper's limits were made with, as text."""
    queue = shaper.core.queue
    if queue.adapts:
        return [f"adaptive={shaper.adaptive.bounds!r}", f"burst={queue.burst}"]
    rates = "; ".join(map(str, queue.rates))
    paced = [repr(rates), f"burst={queue.burst}", f"pace={queue.pace!r}"] if rates else []
    return [*paced, f"gates={queue.gates!r}"] if queue.gates else paced


def checked_reservation(core: Core, reservation: Reservation) -> Reservation:
    """The reservation, if it is of this shaper or of the same one in another process; else ConfigError."""
    given: object = reservation
    if not isinstance(given, Reservation):
        raise ConfigError("reservation", given, "is not a reservation", "pass what reserve() has returned")
    own, other = ((one.name, one.queue.kind) for one in (core, reservation.core))
    if own != other:
        fix = "pass what reserve() of this shaper has returned"
        raise ConfigError("reservation", given, f"is of another shaper, {other[0]!r}", fix)
    return reservation


def checked_rates(rate: RateLike, call: str) -> tuple[Rate, ...]:
    """The parsed rates; `call` is the function or class that the user calls, for the fix."""
    if isinstance(rate, Algorithm):
        strategy = f"{type(rate).__name__}(…)"
        fix = f"write {call}(gates=({strategy},)), or ask a Gate({strategy})"
        raise ConfigError("rate", rate, "is a strategy, not a rate", fix)
    return parse_rates(rate)


def _strategies(gates: object) -> tuple[Any, ...]:
    if isinstance(gates, Algorithm) or not isinstance(gates, Sequence):
        raise ConfigError("gates", gates, "is not a sequence of strategies", 'write gates=(GCRA("10/s"),)')
    return tuple(gates)
