"""Shaper: a leaky bucket on a store, asked "when?"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shapekit import nonce
from shapekit.algorithms.adaptive import Adaptive
from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.grant import Granted
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.clock import Clock
from shapekit.confirmations import Confirmations
from shapekit.departure import Departures
from shapekit.errors import ConfigError
from shapekit.events import Listener, Listening
from shapekit.gate import checked_name, open_store
from shapekit.learning import Learning, queue_between
from shapekit.rate import SECOND_US, Duration, RateLike, duration_us, parse_rates
from shapekit.reservation import Reservation
from shapekit.stores.base import Store
from shapekit.switch import SWITCH
from shapekit.teller import Teller
from shapekit.turns import Turns
from shapekit.waiting import CHUNK_S, Waiters, max_wait_us, timeout_us

if TYPE_CHECKING:
    from shapekit.leases import Leases

__all__ = ["Shaper"]

_FROM_POLICY: Any = object()
"""The default of an argument that falls back on what the shaper was made with."""
UNPACED: Any = object()
"""In place of a rate: everything leaves at once, unless the key is held."""
_ONE = 1
_new = tuple.__new__


class Shaper(Learning):
    """Makes calls leave at `rate`: delays them, or refuses at once when the wait would be too long.

        >>> from shapekit import Shaper
        >>> shaper = Shaper("10/s")
        >>> [shaper.reserve("stripe").accepted for _ in range(2)]
        [True, True]

    Most callers want `schedule`, which reserves and sleeps until the turn comes, or `with shaper:`.
    `reserve` only reserves. First come, first served: nobody overtakes, nobody polls. Each method has
    an awaitable twin with an `a` in front; threads, asyncio and trio may share one shaper.

    - `rate`: one rate or several, `"10/s; 100/min"`. The one with the shortest period is paced, the
      others bound every window of their period.
    - `burst`: how many may leave at once after idling.
    - `max_wait`: a longer wait is refused with QueueFullError. `0` means now or never.
    - `pace="burst"`: not evenly spaced, but as fast as the windows allow.
    - `gates`: further strategies that every departure has to pass. A spent `Quota`, in a
      composite too, refuses with QuotaExhaustedError unless an explicit `max_wait` covers the wait.
    - `headroom=0.02`: shape 2 % below the stated rates; arrivals jitter on their way.
    - `lease="1s"`: for a store that is far away: a busy worker takes further turns on the same trip, at
      most a second of the line, and hands them out at their times; those left over it gives back. What a
      worker owns when it dies is lost, and a hold by another process is heard of after a second at most.
    - `adaptive`: instead of a rate, the bounds of one that is found, by what is told of calls: see
      `throttled`, `succeeded` and `rate`. A Policy that observes its answers tells it by itself.
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
        store: Store | None = None,
        clock: Clock | None = None,
        name: str | None = None,
        headroom: float = 0.0,
        lease: Duration | None = None,
        adaptive: Adaptive | None = None,
        longest_sleep: Duration = CHUNK_S,
    ) -> None:
        if adaptive is not None:
            beside = {"rate": rate, "gates": gates, "headroom": headroom, "lease": lease}
            queue: LeakyQueue = queue_between(adaptive, burst, pace, **beside)
        elif rate is None and not gates:
            raise ConfigError("rate", rate, "is missing", 'write Shaper("10/s")')
        else:
            rates = () if rate is None or rate is UNPACED else parse_rates(rate)
            queue = LeakyQueue(rates, burst, pace, _strategies(gates), headroom)
        self._owns_store = store is None
        self._store = open_store(store, clock)
        self.name = checked_name(name, self._store, "shaper")
        self._max_wait_us = max_wait_us(max_wait)
        chunk_us = duration_us("longest_sleep", longest_sleep)
        self._waiters = Waiters(self._store.clock, f"shaper {self.name!r}", chunk_us / SECOND_US)
        self._leases: Leases | None = None
        self._confirmations = Confirmations(self._store, self.name, queue)
        if lease is not None:
            from shapekit.leases import leased  # noqa: PLC0415 - only who leases loads it

            self._leases, self._confirmations = leased(self.name, self._store, queue, lease)
        teller = Teller(self.name, self._store.clock, self._waiters)
        departures = Departures(self._store, self._waiters, self._confirmations, teller)
        super().__init__(self.name, queue, self._store, self._confirmations, teller, departures)
        self._turns = Turns(self, self.name, self._store, teller, departures, self._leases)
        self._reserve = self._turns.ask
        self._areserve = self._turns.aask

    # taking a turn

    def reserve(
        self, key: str = "default", *, cost: int = 1, max_wait: Duration | None = _FROM_POLICY
    ) -> Reservation:
        """Take the earliest turn, or be refused and consume nothing. Does not wait."""
        if cost is not _ONE or key.__class__ is not str:
            self._admissible(key, cost)
        if not SWITCH.is_plain:
            return self._turns.reserve(key, cost, self._bound_us(max_wait))
        bound_us = self._max_wait_us if max_wait is _FROM_POLICY else max_wait_us(max_wait)
        return _new(Reservation, (self, key, self._reserve(key, (cost, bound_us, nonce.fresh()))))

    async def areserve(
        self, key: str = "default", *, cost: int = 1, max_wait: Duration | None = _FROM_POLICY
    ) -> Reservation:
        """`reserve`, awaitable."""
        self._admissible(key, cost)
        bound_us = self._bound_us(max_wait)
        if not SWITCH.is_plain:
            return await self._turns.areserve(key, cost, bound_us)
        return Reservation(self, key, await self._areserve(key, (cost, bound_us, nonce.fresh())))

    def schedule(
        self,
        key: str = "default",
        *,
        cost: int = 1,
        max_wait: Duration | None = _FROM_POLICY,
        timeout: Duration | None = None,
    ) -> Reservation:
        """Take the earliest turn and sleep until it comes.

        Raises QueueFullError or QuotaExhaustedError at once if it is too far away, TimeoutError after
        `timeout`. Whoever stops waiting, for whatever reason, gives the turn back.
        """
        gives_up_us = None if timeout is None else timeout_us(timeout)
        turn = self.reserve(key, cost=cost, max_wait=max_wait)
        if turn.granted[1] or not turn.granted[0] or not SWITCH.is_plain:
            self._departures.depart(turn, self._bound_us(max_wait), gives_up_us)
        return turn

    async def aschedule(
        self,
        key: str = "default",
        *,
        cost: int = 1,
        max_wait: Duration | None = _FROM_POLICY,
        timeout: Duration | None = None,  # noqa: ASYNC109 - gives up the turn too, as the sync form does
    ) -> Reservation:
        """`schedule`, awaitable; a cancelled task gives its turn back."""
        gives_up_us = timeout_us(timeout)
        if self._store.instant:
            turn = self.reserve(key, cost=cost, max_wait=max_wait)
        else:
            turn = await self.areserve(key, cost=cost, max_wait=max_wait)
        if turn.granted[1] or not turn.granted[0] or not SWITCH.is_plain:
            await self._departures.adepart(turn, self._bound_us(max_wait), gives_up_us)
        return turn

    def taker(self, key: str, cost: int) -> Callable[[], Granted]:
        """Reservations that always ask the same, prepared: for whoever makes them often, to leave."""
        self._admissible(key, cost)
        reserve, reserve_aloud, bound_us = self._reserve, self._turns.take, self._max_wait_us

        def take() -> Granted:
            if not SWITCH.is_plain:
                return reserve_aloud(key, cost, bound_us)
            granted: Granted = reserve(key, (cost, bound_us, nonce.fresh()))
            return granted

        return take

    def depart(self, key: str, granted: Granted) -> None:
        """Sleep until the turn of a `taker` comes, or raise what it was refused with."""
        self._departures.depart(Reservation(self, key, granted), self._max_wait_us, None)

    async def adepart(self, key: str, granted: Granted) -> None:
        """`depart`, awaitable."""
        await self._departures.adepart(Reservation(self, key, granted), self._max_wait_us, None)

    def remaining(self, turn: Reservation) -> float:
        """Seconds until a turn comes, with the holds placed since; negative once it has passed.

        For whoever waits elsewhere than in `schedule`; the turn may come from another process.
        """
        return self._departures.remaining_us(turn) / SECOND_US

    async def aremaining(self, turn: Reservation) -> float:
        """`remaining`, awaitable."""
        return await self._departures.aremaining_us(turn) / SECOND_US

    def __enter__(self) -> Self:
        self.schedule()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The turn was used: nothing to give back."""

    async def __aenter__(self) -> Self:
        await self.aschedule()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The turn was used: nothing to give back."""

    def settle(self, turn: Reservation, actual: int) -> bool:
        """Make a call that has left cost what it turned out to cost; 0 if it never counted.

        Charges the difference, into debt if need be, or gives it back as far as nobody has built on it. What
        comes back helps those who have no turn yet: whoever waits keeps the turn that was promised.
        """
        return self._turns.settle(turn, actual)

    async def asettle(self, turn: Reservation, actual: int) -> bool:
        """`settle`, awaitable."""
        return await self._turns.asettle(turn, actual)

    def listen(self, listener: Listener) -> Listening:
        """Tell the listener what happens here from now on, until what is returned is closed; see `events`."""
        return self._teller.ears.add(listener)

    def close(self) -> None:
        """Wake whoever waits, with StoreUnavailableError; close the store if this shaper made it."""
        self._waiters.close()
        if self._leases is not None:
            self._leases.close()
        if self._owns_store:
            self._store.close()

    async def aclose(self) -> None:
        """`close`, awaitable."""
        self._waiters.close()
        if self._leases is not None:
            await self._leases.aclose()
        if self._owns_store:
            await self._store.aclose()

    def wall(self) -> float:
        """Civil time, in epoch seconds."""
        return self._store.clock.wall_us() / SECOND_US

    @property
    def instant(self) -> bool:
        """Whether the store answers without I/O, so that there is nothing to await."""
        return self._store.instant

    @property
    def shared(self) -> bool:
        """Whether other processes see the same keys."""
        return self._store.shared

    def __repr__(self) -> str:
        if self.adapts:
            between = Adaptive(self._steered.lowest, self._steered.highest)
            return f"Shaper(adaptive={between!r}, burst={self.queue.burst}, name={self.name!r})"
        rates = "; ".join(map(str, self.queue.rates))
        return f"Shaper({rates!r}, burst={self.queue.burst}, pace={self.queue.pace!r}, name={self.name!r})"

    def _bound_us(self, max_wait: Any) -> int | None:
        return self._max_wait_us if max_wait is _FROM_POLICY else max_wait_us(max_wait)

    def cancel(self, turn: Reservation) -> bool:
        """`turn.cancel()`."""
        return self._turns.cancel(turn)

    async def acancel(self, turn: Reservation) -> bool:
        """`turn.acancel()`."""
        return await self._turns.acancel(turn)

    def give_back(self, turn: Reservation) -> bool:
        """Give back the turn of a call that never leaves, also where it is too late for `cancel`; untold."""
        return self._turns.give_back(turn)

    async def agive_back(self, turn: Reservation) -> bool:
        """`give_back`, awaitable."""
        return await self._turns.agive_back(turn)


def _strategies(gates: object) -> tuple[Any, ...]:
    if isinstance(gates, Algorithm) or not isinstance(gates, Sequence):
        raise ConfigError("gates", gates, "is not a sequence of strategies", 'write gates=(GCRA("10/s"),)')
    return tuple(gates)
