"""Learning: what a shaper is told of its calls, where its rate is found and not given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from shapekit import nonce
from shapekit.algorithms.adaptive import Adaptive
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.confirmations import Confirmations
from shapekit.departure import Departures
from shapekit.errors import ConfigError
from shapekit.levers import Levers
from shapekit.rate import MAX_COUNT, SECOND_US, Duration, duration_us, whole
from shapekit.stores.base import Store
from shapekit.teller import Teller

if TYPE_CHECKING:
    from shapekit.algorithms.adaptive_queue import AdaptiveQueue
    from shapekit.tallies import Tally

__all__ = ["Lesson"]


class Lesson(NamedTuple):
    """What the answer to one call says of the rate."""

    age_us: int
    """How long ago the call left."""
    is_refusal: bool
    is_success: bool
    waited: bool
    """Whether the call had to wait for its turn: others say nothing of the rate."""
    hold_us: int = 0
    """How long nobody may leave, where it is a refusal."""
    stated: tuple[int, int] | None = None
    """How many calls the server bears, in how long a window in µs, where it says so and is to be believed."""


class Learning(Levers):
    """What is told of calls: the store hears of refusals at once, of successes about once a second."""

    def __init__(
        self,
        name: str,
        queue: LeakyQueue,
        store: Store,
        confirmations: Confirmations,
        teller: Teller,
        departures: Departures,
    ) -> None:
        super().__init__(name, queue, store, confirmations, teller, departures)
        self.adapts = queue.adapts
        """Whether the rate is found."""
        if not self.adapts:
            return
        from shapekit.tallies import Tallies  # noqa: PLC0415 - only who finds a rate loads it

        self._steered = cast("AdaptiveQueue", queue)
        self._now_us = store.clock.now_us
        self._tallies = Tallies()
        bound = (name, queue)
        changing, achanging = confirmations.changing, confirmations.achanging
        self._throttled = changing(store.bind(*bound, "throttled"))
        self._athrottled = achanging(store.abind(*bound, "throttled"))
        self._succeeded = changing(store.bind(*bound, "succeeded"))
        self._asucceeded = achanging(store.abind(*bound, "succeeded"))
        self._stated = changing(store.bind(*bound, "stated"))
        self._astated = achanging(store.abind(*bound, "stated"))

    # told by whoever calls

    def throttled(self, *, age: Duration, key: str = "default", hold: Duration = 0) -> float:
        """A call that left `age` ago was refused by the server: the rate is lowered, once in an incident.

        `hold`: for how long the server wants nobody to leave. Returns how long the key is held now.
        """
        return self.learn(key, self._refusal(key, age, hold))

    async def athrottled(self, *, age: Duration, key: str = "default", hold: Duration = 0) -> float:
        """`throttled`, awaitable."""
        return await self.alearn(key, self._refusal(key, age, hold))

    def succeeded(self, *, age: Duration, key: str = "default", waited: bool = True) -> None:
        """A call that left `age` ago was answered: where that goes on, the rate is raised.

        `waited`: whether it had to wait for its turn (`turn.delay > 0`). One that had not does not show
        that the server bears the rate, for nobody was using that.
        """
        self.learn(key, self._success(key, age, waited=waited))

    async def asucceeded(self, *, age: Duration, key: str = "default", waited: bool = True) -> None:
        """`succeeded`, awaitable."""
        await self.alearn(key, self._success(key, age, waited=waited))

    def stated(self, limit: int, window: Duration, *, age: Duration, key: str = "default") -> None:
        """The answer to a call that left `age` ago says: `limit` calls in a `window`, and no more.

        The rate stays at or below that, until the answer to a call that left later says something else.
        """
        self.learn(key, self._statement(key, limit, window, age))

    async def astated(self, limit: int, window: Duration, *, age: Duration, key: str = "default") -> None:
        """`stated`, awaitable."""
        await self.alearn(key, self._statement(key, limit, window, age))

    def rate(self, *, key: str = "default") -> float:
        """The rate that a key has now, in calls a second."""
        self._adaptive(key)
        with self._teller.watching(key):
            return self._rate_of(self._look(key))

    async def arate(self, *, key: str = "default") -> float:
        """`rate`, awaitable."""
        self._adaptive(key)
        with self._teller.watching(key):
            return self._rate_of(await self._alook(key))

    # told by an admission

    def learn(self, key: str, lesson: Lesson) -> float:
        """Tell the store what an answer says, as far as it is time; returns how long the key is held."""
        held_us = 0
        with self._teller.watching(key):
            for tell, args in self._words(key, lesson):
                held_us = self._learned(key, lesson, getattr(self, f"_{tell}")(key, *args))
        return held_us / SECOND_US

    async def alearn(self, key: str, lesson: Lesson) -> float:
        """`learn`, awaitable."""
        held_us = 0
        with self._teller.watching(key):
            for tell, args in self._words(key, lesson):
                held_us = self._learned(key, lesson, await getattr(self, f"_a{tell}")(key, *args))
        return held_us / SECOND_US

    # inside

    def _words(self, key: str, lesson: Lesson) -> list[tuple[str, tuple[int, ...]]]:
        """What is to be told now: operations and their arguments."""
        now = self._now_us()
        words: list[tuple[str, tuple[int, ...]]] = []
        if lesson.is_refusal:
            # What succeeded before tells this refusal from those of the last incident.
            if tally := self._tallies.take(key, now):
                words.append(_told(tally, now))
            words.append(("throttled", (lesson.age_us, lesson.hold_us, nonce.fresh())))
        elif lesson.is_success and (
            tally := self._tallies.add(key, now - lesson.age_us, now, waited=lesson.waited)
        ):
            words.append(_told(tally, now))
        if lesson.stated is not None:
            share = self._steered.share(*lesson.stated)
            words.append(("stated", (share, lesson.age_us, nonce.fresh())))
        return words

    def _learned(self, key: str, lesson: Lesson, learned: tuple[int, int, int]) -> int:
        before, after, held_us = learned
        if before != after:
            per_second = self._steered.per_second
            self._teller.rate_changed(key, per_second(after), per_second(before))
        if lesson.hold_us and held_us == lesson.hold_us:
            self._teller.held(key, held_us)
        return held_us

    def _refusal(self, key: str, age: Duration, hold: Duration) -> Lesson:
        self._adaptive(key)
        hold_us = duration_us("hold", hold, least=0)
        return Lesson(_age_us(age), is_refusal=True, is_success=False, waited=True, hold_us=hold_us)

    def _success(self, key: str, age: Duration, *, waited: bool) -> Lesson:
        self._adaptive(key)
        return Lesson(_age_us(age), is_refusal=False, is_success=True, waited=bool(waited))

    def _statement(self, key: str, limit: int, window: Duration, age: Duration) -> Lesson:
        self._adaptive(key)
        stated = whole("limit", limit, most=MAX_COUNT), duration_us("window", window)
        return Lesson(_age_us(age), is_refusal=False, is_success=False, waited=True, stated=stated)

    def _adaptive(self, key: str) -> None:
        self._admissible(key, 1)
        if not self.adapts:
            raise ConfigError(
                "adaptive", None, "was not said: the rate of this shaper is given", "use Shaper(adaptive=…)"
            )

    def _rate_of(self, looked: tuple[Any, int, int]) -> float:
        state, now, _ = looked
        _, _, _, _, *clock = self._steered.confirm(state, now)
        return self._steered.per_second(clock[1] if clock else self._steered.least)


def queue_between(adaptive: object, burst: int | None, pace: str, **beside: Any) -> AdaptiveQueue:
    """The queue of a shaper whose rate is found; `beside` are arguments that say something else."""
    if not isinstance(adaptive, Adaptive):
        raise ConfigError("adaptive", adaptive, "is no Adaptive", 'write Adaptive(min="1/s", max="50/s")')
    if pace != "smooth":
        raise ConfigError("pace", pace, "is not smooth, as adaptive= has it", "leave it away")
    for field, told in beside.items():
        if told:
            raise ConfigError(
                field,
                told,
                "comes beside adaptive=, whose departures move",
                "leave it away, or admit each call by two policies, one inside the other",
            )
    from shapekit.algorithms.adaptive_queue import AdaptiveQueue  # noqa: PLC0415 - only who finds a rate loads it

    return AdaptiveQueue(adaptive.min, adaptive.max, burst)


def _told(tally: Tally, now: int) -> tuple[str, tuple[int, ...]]:
    first_us = now if tally.left_us is None else tally.left_us
    return "succeeded", (tally.waited, max(0, now - first_us), nonce.fresh())


def _age_us(age: Duration) -> int:
    return duration_us("age", age, least=0)
