"""Shaper: a leaky bucket on a store, asked "when?"."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from shapekit._queue.adaptive import AdaptiveRate, queue_between
from shapekit._queue.core import Core
from shapekit._queue.reservation import Outlook, Reservation
from shapekit._runtime import forks
from shapekit._runtime.drivers import CHUNK_S, TASKS, run, stop_if_cancelled
from shapekit._runtime.switch import SWITCH
from shapekit.algorithms.adaptive.aimd import Adaptive
from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.slots import ACCEPTED, WAIT_US
from shapekit.clock import Clock
from shapekit.errors import ConfigError
from shapekit.events import Listener, Listening
from shapekit.gate import checked_name
from shapekit.rate import (
    AS_CONFIGURED,
    SECOND_US,
    Duration,
    Rate,
    RateLike,
    duration_us,
    max_wait_us,
    parse_rates,
    timeout_us,
)
from shapekit.stores import StoreLike, open_store
from shapekit.stores.base import Store

__all__ = ["Shaper"]

UNPACED: Any = object()
"""In place of a rate: everything leaves at once, unless the key is held."""
_ONE = 1


class Shaper:
    """Makes calls leave at `rate`: delays them, or refuses at once when the wait would be too long.

        >>> from shapekit import Shaper
        >>> shaper = Shaper("10/s")
        >>> [shaper.reserve("stripe").accepted for _ in range(2)]
        [True, True]

    Most callers want `schedule`, which reserves and sleeps until the slot comes, or `with shaper:`.
    `reserve` only reserves. First come, first served: no call overtakes another. Each method has
    an awaitable twin with an `a` in front; threads, asyncio and trio may share one shaper.

    - `rate`: one rate or several, `"10/s; 100/min"`. The one with the shortest period is paced, the
      others bound every window of their period.
    - `burst`: how many calls may leave at once after an idle time.
    - `max_wait`: a longer wait is refused with QueueFullError. `0` means now or never, None without a bound.
      It is the default of every call.
    - `pace="burst"`: not evenly spaced, but as fast as the windows allow.
    - `gates`: further strategies that every departure has to pass. A spent `Quota`, in a
      composite too, refuses with QuotaExhaustedError unless an explicit `max_wait` covers the wait.
    - `headroom=0.02`: shape 2 % below the stated rates; arrivals jitter on their way.
    - `prefetch="1s"`: for a distant store. A busy worker takes up to a second's worth of slots on one trip,
      hands them out at their times, and gives back the rest. The slots of a worker that dies are lost, and
      a hold by another process is noticed after a second at most.
    - `adaptive`: instead of a rate, its bounds. The rate is found from the outcomes of calls, which a Policy
      reports by itself, and which `shaper.adaptive` takes from other code.
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
        opened, self._owns_store = open_store(store, clock)
        self.name = checked_name(name, opened, "shaper")
        """The name under which the keys of the shaper are found on its store."""
        self._max_wait_us = max_wait_us(max_wait)
        chunk_s = duration_us("longest_sleep", longest_sleep) / SECOND_US
        self.core = Core(self.name, queue, opened, self._max_wait_us, chunk_s, prefetch)
        self._adaptive = AdaptiveRate(self.core) if queue.adapts else None
        # What every call comes by.
        self._check, self._waiter = self.core.check, self.core.waiter
        # An answer that was long on its way is looked at. From a store that answers on the spot, none is.
        self._now_us = None if opened.instant else opened.clock.now_us
        self._grant, self._agrant = self.core.grant.call, self.core.grant.acall

    @property
    def adaptive(self) -> AdaptiveRate:
        """The adaptive rate, if `adaptive=` was given: its present value, and where outcomes are reported."""
        if self._adaptive is None:
            raise ConfigError(
                "adaptive", None, "is not set: this shaper has a fixed rate", "use Shaper(adaptive=…)"
            )
        return self._adaptive

    def reserve(
        self, key: str = "default", *, cost: int = 1, max_wait: Duration | None = AS_CONFIGURED
    ) -> Reservation:
        """Take the earliest slot, or be refused and consume nothing. Does not wait."""
        if cost is not _ONE or key.__class__ is not str:
            self._check(key, cost)
        if SWITCH.loud:
            return run(self.core.reserve, key, cost, self._bound_us(max_wait))
        bound_us = self._max_wait_us if max_wait is AS_CONFIGURED else max_wait_us(max_wait)
        return Reservation(self.core, key, self._grant(key, (cost, bound_us, forks.fresh_id())))

    async def areserve(
        self, key: str = "default", *, cost: int = 1, max_wait: Duration | None = AS_CONFIGURED
    ) -> Reservation:
        """`reserve`, awaitable."""
        if cost is not _ONE or key.__class__ is not str:
            self._check(key, cost)
        bound_us = self._max_wait_us if max_wait is AS_CONFIGURED else max_wait_us(max_wait)
        if self._now_us is None:  # else the store is awaited, which is a point of cancellation
            await stop_if_cancelled()
        if SWITCH.loud:
            return await self.core.reserve(TASKS, key, cost, bound_us)
        return Reservation(self.core, key, await self._agrant(key, (cost, bound_us, forks.fresh_id())))

    def schedule(
        self,
        key: str = "default",
        *,
        cost: int = 1,
        max_wait: Duration | None = AS_CONFIGURED,
        timeout: Duration | None = None,
    ) -> Reservation:
        """Take the earliest slot and sleep until it comes.

        Raises QueueFullError or QuotaExhaustedError at once if it is too far away, TimeoutError after
        `timeout`. A call that stops waiting, for whatever reason, gives its slot back.
        """
        gives_up_us = None if timeout is None else timeout_us(timeout)
        asked_us = self._now_us and self._now_us()
        reservation = self.reserve(key, cost=cost, max_wait=max_wait)
        granted = reservation.granted
        is_slow = False
        if asked_us is not None:
            is_slow = not self._waiter.is_prompt(granted, asked_us)
        if granted[WAIT_US] or is_slow or not granted[ACCEPTED] or SWITCH.loud:
            run(self._waiter.leave, reservation, self._bound_us(max_wait), gives_up_us, is_slow=is_slow)
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
            await stop_if_cancelled()
            reservation = self.reserve(key, cost=cost, max_wait=max_wait)
        else:
            reservation = await self.areserve(key, cost=cost, max_wait=max_wait)
            is_slow = not self._waiter.is_prompt(reservation.granted, asked_us)
        granted = reservation.granted
        if granted[WAIT_US] or is_slow or not granted[ACCEPTED] or SWITCH.loud:
            bound_us = self._bound_us(max_wait)
            await self._waiter.leave(TASKS, reservation, bound_us, gives_up_us, is_slow=is_slow)
        return reservation

    def cancel(self, reservation: Reservation) -> bool:
        """Give a slot back: `reservation.cancel()`."""
        return run(self.core.cancel, checked_reservation(reservation))

    async def acancel(self, reservation: Reservation) -> bool:
        """`cancel`, awaitable."""
        return await self.core.cancel(TASKS, checked_reservation(reservation))

    def settle(self, reservation: Reservation, actual: int) -> bool:
        """Make a call that has left cost what it turned out to cost; 0 if it never counted.

        The difference is charged, into debt if need be, or given back as far as no later call is built on it.
        What is given back goes to calls that have no slot yet; waiting calls keep theirs. Repeating a cost
        changes nothing; of several, the last one counts.
        """
        return run(self.core.settle, checked_reservation(reservation), actual) > 0

    async def asettle(self, reservation: Reservation, actual: int) -> bool:
        """`settle`, awaitable."""
        return await self.core.settle(TASKS, checked_reservation(reservation), actual) > 0

    def hold(self, length: Duration, *, key: str = "default") -> float:
        """Stop all calls of `key` for `length`, in every process; returns how long it is held now.

        Waiting calls move by as much and keep their order, and the rate continues where it was. A longer
        hold in place stays. A call that waits through the hold stays charged to the quota period or fixed
        window that it was promised, so the period in which it leaves may see its limit plus the calls that
        were held back.
        """
        return run(self.core.hold, length, key)

    async def ahold(self, length: Duration, *, key: str = "default") -> float:
        """`hold`, awaitable."""
        return await self.core.hold(TASKS, length, key)

    def resume(self, *, key: str = "default") -> float:
        """End a hold; returns how long the key is still held, until all waiting calls have noticed.

        In memory that is a quarter of a second. In a shared store it is a twelfth of what was left of the
        hold: at least 1.5 seconds, at most 90.
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

        For code that waits elsewhere than in `schedule`. The slot may have been taken in another process.
        """
        return run(self.core.remaining, checked_reservation(reservation))

    async def aremaining(self, reservation: Reservation) -> float:
        """`remaining`, awaitable."""
        return await self.core.remaining(TASKS, checked_reservation(reservation))

    def forecast(self, calls: int = 1, *, key: str = "default", cost: int = 1) -> Outlook:
        """When `calls` more calls will have left, if they came now and no others did.

        Takes some 0.2 s at most. If that is too short for so many calls, raises a ConfigError that names the
        bound, which is 5,000 calls or more; under rates, windows and one calendar quota there is mostly none.
        """
        return run(self.core.forecast, calls, key, cost)

    async def aforecast(self, calls: int = 1, *, key: str = "default", cost: int = 1) -> Outlook:
        """`forecast`, awaitable."""
        return await self.core.forecast(TASKS, calls, key, cost)

    def reset(self, key: str = "default") -> None:
        """Forget the key: its queue, its hold, the memory of its limits. Waiting calls keep their slots."""
        run(self.core.reset, key)

    async def areset(self, key: str = "default") -> None:
        """`reset`, awaitable."""
        await self.core.reset(TASKS, key)

    def __enter__(self) -> Self:
        self.schedule()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The slot was used: nothing to give back."""

    async def __aenter__(self) -> Self:
        await self.aschedule()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The slot was used: nothing to give back."""

    def listen(self, listener: Listener) -> Listening:
        """Add a listener for the events of this shaper; closing the returned `Listening` removes it."""
        return self.core.reporter.listeners.add(listener)

    def close(self) -> None:
        """Wake all waiting calls with StoreUnavailableError; close the store if this shaper made it."""
        run(self.core.close, self._owned)

    async def aclose(self) -> None:
        """`close`, awaitable."""
        await self.core.close(TASKS, self._owned)

    @property
    def _owned(self) -> Store | None:
        return self.core.store if self._owns_store else None

    def _bound_us(self, max_wait: Any) -> int | None:
        return self._max_wait_us if max_wait is AS_CONFIGURED else max_wait_us(max_wait)

    def __repr__(self) -> str:
        return f"Shaper({', '.join(limits_shown(self))}, name={self.name!r})"


def limits_shown(shaper: Shaper) -> list[str]:
    """The arguments that a shaper's limits were made with, as text."""
    queue = shaper.core.queue
    if queue.adapts:
        return [f"adaptive={shaper.adaptive.bounds!r}", f"burst={queue.burst}"]
    rates = "; ".join(map(str, queue.rates))
    paced = [repr(rates), f"burst={queue.burst}", f"pace={queue.pace!r}"] if rates else []
    return [*paced, f"gates={queue.gates!r}"] if queue.gates else paced


def checked_reservation(reservation: Reservation) -> Reservation:
    """The reservation, if it is one."""
    told: object = reservation
    if not isinstance(told, Reservation):
        raise ConfigError("reservation", told, "is not a reservation", "pass what reserve() has returned")
    return reservation


def checked_rates(rate: RateLike, call: str) -> tuple[Rate, ...]:
    """The rates; `call` is how users write what they are given to, for the fix."""
    if isinstance(rate, Algorithm):
        strategy = f"{type(rate).__name__}(…)"
        fix = f"write {call}(gates=({strategy},)), or ask a Gate({strategy})"
        raise ConfigError("rate", rate, "is a strategy, not a rate", fix)
    return parse_rates(rate)


def _strategies(gates: object) -> tuple[Any, ...]:
    if isinstance(gates, Algorithm) or not isinstance(gates, Sequence):
        raise ConfigError("gates", gates, "is not a sequence of strategies", 'write gates=(GCRA("10/s"),)')
    return tuple(gates)
