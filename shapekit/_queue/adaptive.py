"""Adaptive rate: the outcomes of calls, from which the store adjusts the rate of a key.

Tallies count the successes of this process, which are reported to the store together, about once a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit.algorithms.queue.adaptive import STATED, SUCCEEDED, THROTTLED, Adaptive, AdaptiveQueue
from shapekit.clock import forgets
from shapekit.errors import ConfigError
from shapekit.rate import MAX_COUNT, SECOND_US, Duration, duration_us, whole

if TYPE_CHECKING:
    from shapekit.shaper import Core

__all__ = ["AdaptiveRate"]

PAUSE_US = 1_000_000
"""How long successes are gathered before they are reported."""
MOST_KEYS = 1_024
"""How many keys are tallied; beyond that, the key that was quiet for longest loses its unreported successes.
"""


class Tally(NamedTuple):
    """The unreported successes of one key."""

    told_us: int
    """When the key was last reported."""
    waited: int = 0
    """Successes of calls that had to wait."""
    left_us: int | None = None
    """When the first of the successful calls left, whether it had to wait or not; None if there were none."""


class Tallies:
    """The tallies of one process; thread-safe."""

    def __init__(self) -> None:
        self._lock = process.lock()
        self.begin()
        forgets(self, Tallies.begin)

    def begin(self) -> None:
        """Start empty: at first, and where virtual time begins or ends."""
        self._by_key: dict[str, Tally] = {}

    def add(self, key: str, left_us: int, now_us: int, *, waited: bool) -> Tally | None:
        """Count a success; returns the tally to report now, if one is due."""
        with self._lock:
            told_us, before, first_us = self._by_key.pop(key, Tally(now_us))
            first_us = left_us if first_us is None else min(first_us, left_us)
            tally = Tally(told_us, before + waited, first_us)
            is_time = not 0 <= now_us - told_us < PAUSE_US
            process.make_room(self._by_key, MOST_KEYS)
            self._by_key[key] = Tally(now_us) if is_time else tally
            return tally if is_time else None

    def take(self, key: str, now_us: int) -> Tally | None:
        """The unreported tally, to be reported now; None if there is none."""
        with self._lock:
            tally = self._by_key.get(key)
            if tally is None or tally.left_us is None:
                return None
            self._by_key[key] = Tally(now_us)
            return tally


class RateSignal(NamedTuple):
    """What the response to one call says about the rate."""

    age_us: int
    """How long ago the call left."""
    is_refusal: bool
    is_success: bool
    waited: bool
    """Whether the call had to wait for its slot: only those that waited show that the server bears the rate.
    """
    hold_us: int = 0
    """How long no call may leave, if this is a refusal."""
    stated: tuple[int, int] | None = None
    """The limit that the server states, as (calls, window in µs); None without one that can be trusted."""


class AdaptiveRate:
    """The rate of an adaptive shaper: reads the current rate and reports the outcomes of calls.

    Refusals are reported to the store at once, successes about once a second. A Policy reports the outcomes
    of its calls itself.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._queue = cast("AdaptiveQueue", core.queue)
        self._tallies = Tallies()
        bound, changing = (core.name, core.queue), core.status.changing
        self._throttled = changing(core.store.twin(*bound, THROTTLED))
        self._succeeded = changing(core.store.twin(*bound, SUCCEEDED))
        self._stated = changing(core.store.twin(*bound, STATED))

    @property
    def bounds(self) -> Adaptive:
        """The lowest and the highest rate."""
        return Adaptive(self._queue.lowest, self._queue.highest)

    def rate(self, *, key: str = "default") -> float:
        """The current rate of a key, in calls per second."""
        return run(self._rate, key)

    async def arate(self, *, key: str = "default") -> float:
        """`rate`, awaitable."""
        return await self._rate(TASKS, key)

    def throttled(self, *, age: Duration, key: str = "default", hold: Duration = 0) -> float:
        """Report that the server refused a call that left `age` ago: the rate is lowered, once per incident.

        `hold` is how long the server wants no calls. Returns how many seconds the key is held from now.
        """
        return run(self.learn, key, self._refusal(age, hold))

    async def athrottled(self, *, age: Duration, key: str = "default", hold: Duration = 0) -> float:
        """`throttled`, awaitable."""
        return await self.learn(TASKS, key, self._refusal(age, hold))

    def succeeded(self, *, age: Duration, key: str = "default", waited: bool = True) -> None:
        """Report that a call that left `age` ago succeeded: while calls keep succeeding, the rate rises.

        `waited` says whether the call had to wait for its slot (`reservation.delay > 0`). Only a call that
        waited shows that the server bears the rate.
        """
        run(self.learn, key, self._success(age, waited=waited))

    async def asucceeded(self, *, age: Duration, key: str = "default", waited: bool = True) -> None:
        """`succeeded`, awaitable."""
        await self.learn(TASKS, key, self._success(age, waited=waited))

    def stated(self, limit: int, window: Duration, *, age: Duration, key: str = "default") -> None:
        """Report the limit stated in the response to a call that left `age` ago: `limit` calls per `window`.

        The rate stays at or below that limit until the response to a later call states another one.
        """
        run(self.learn, key, self._statement(limit, window, age))

    async def astated(self, limit: int, window: Duration, *, age: Duration, key: str = "default") -> None:
        """`stated`, awaitable."""
        await self.learn(TASKS, key, self._statement(limit, window, age))

    async def learn(self, driver: Driver, key: str, signal: RateSignal) -> float:
        """Report to the store what a response says, if a report is due. Returns how many seconds the key is
        held.
        """
        key, held_us = self._core.check(key, 1), 0
        with self._core.reporter.watching(key):
            for tell, args in self._operations(key, signal):
                before, after, held_us = await driver.ask(tell, key, *args)
                if before != after:
                    per_second = cast("AdaptiveQueue", self._core.queue_of(key)).per_second
                    self._core.reporter.rate_changed(key, per_second(after), per_second(before))
                if signal.hold_us and held_us == signal.hold_us:
                    self._core.reporter.held(key, held_us)
        return held_us / SECOND_US

    def _operations(self, key: str, signal: RateSignal) -> list[tuple[Twin[Any], tuple[int, ...]]]:
        """The operations to send to the store now, with their arguments."""
        now = self._core.store.clock.now_us()
        operations: list[tuple[Twin[Any], tuple[int, ...]]] = []
        if signal.is_refusal:
            # Successes since the last incident show that this refusal begins a new one.
            if tally := self._tallies.take(key, now):
                operations.append((self._succeeded, _arguments(tally, now)))
            operations.append((self._throttled, (signal.age_us, signal.hold_us, process.fresh_id())))
        elif signal.is_success and (
            tally := self._tallies.add(key, now - signal.age_us, now, waited=signal.waited)
        ):
            operations.append((self._succeeded, _arguments(tally, now)))
        if signal.stated is not None:
            share = cast("AdaptiveQueue", self._core.queue_of(key)).share(*signal.stated)
            operations.append((self._stated, (share, signal.age_us, process.fresh_id())))
        return operations

    def _refusal(self, age: Duration, hold: Duration) -> RateSignal:
        hold_us = duration_us("hold", hold, least=0)
        return RateSignal(_age_us(age), is_refusal=True, is_success=False, waited=True, hold_us=hold_us)

    def _success(self, age: Duration, *, waited: bool) -> RateSignal:
        return RateSignal(_age_us(age), is_refusal=False, is_success=True, waited=bool(waited))

    def _statement(self, limit: int, window: Duration, age: Duration) -> RateSignal:
        stated = whole("limit", limit, most=MAX_COUNT), duration_us("window", window)
        return RateSignal(_age_us(age), is_refusal=False, is_success=False, waited=True, stated=stated)

    async def _rate(self, driver: Driver, key: str) -> float:
        key = self._core.check(key, 1)
        with self._core.reporter.watching(key):
            state, now, _ = await driver.ask(self._core.look, key)
        queue = cast("AdaptiveQueue", self._core.queue_of(key))
        _, _, _, _, _, *clock = queue.confirm(state, now)
        return queue.per_second(clock[1] if clock else queue.least)


def queue_between(adaptive: object, burst: int | None, pace: str, **beside: Any) -> AdaptiveQueue:
    """The queue of an adaptive shaper; `beside` are arguments that conflict with `adaptive=`."""
    if not isinstance(adaptive, Adaptive):
        raise ConfigError("adaptive", adaptive, "is not an Adaptive", 'write Adaptive(min="1/s", max="50/s")')
    if pace != "smooth":
        raise ConfigError("pace", pace, "conflicts with adaptive=, which paces evenly", "leave it out")
    for field, value in beside.items():
        if value:
            fix = "leave it out, or admit each call by two policies, one inside the other"
            raise ConfigError(field, value, "conflicts with adaptive=, which moves slots", fix)
    return AdaptiveQueue(adaptive.min, adaptive.max, burst)


def _arguments(tally: Tally, now: int) -> tuple[int, ...]:
    first_us = now if tally.left_us is None else tally.left_us
    return tally.waited, max(0, now - first_us), process.fresh_id()


def _age_us(age: Duration) -> int:
    return duration_us("age", age, least=0)
