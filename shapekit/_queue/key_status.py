"""Key status: what a call asks right before it leaves, so that holds placed while it waited still move it.

If a question is a trip to the store, all calls that leave one key within 10 ms share one: the first call
sends it, calls that come while it is under way wait for its answer, and calls after that reuse the answer.
When this process changes a key, its question is forgotten, so that no call leaves by an answer from before.

A watch holds what a process knows about a key whose waiting calls may have to move: a key that is held (the
hold may be ended or prolonged), or one with an adaptive rate. Changes that the process makes itself reach its
calls at once. Changes by other processes are found by polling, with one question for all calls that wait at
the key: the first call to poll asks, the others reuse its answer, and an answer with news wakes them all, so
that they leave in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

from shapekit._runtime import forks
from shapekit._runtime.drivers import Alarm, Driver, Twin
from shapekit.algorithms.queue.moves import Moves
from shapekit.algorithms.queue.queue import CONFIRM, FOLLOW, LeakyQueue
from shapekit.rate import SECOND_US
from shapekit.stores.base import Store, companion
from shapekit.stores.settings import Settings

__all__ = ["AT_ONCE_US", "KeyPoller", "Limits", "Watch", "notice_us", "pause_us"]

QUICK_US = SECOND_US // 4
"""The shortest interval between polls right after a change."""
SLOW_US = SECOND_US
"""The shortest interval once nothing has changed for two seconds."""
PART = 20
"""The shortest interval as a part of the wait that is left,"""
LONGEST_US = 60 * SECOND_US
"""capped here, so that a hold of a day can be ended within a minute or two."""
JITTER = 4
"""The interval is longer by up to this part, at random, so that processes do not poll in step."""
AT_ONCE_US = SECOND_US // 4
"""How far ahead a hold is ended in a store where every waiting call hears of it at once."""
NOTICE_PART = 12
LEAST_NOTICE_US, MOST_NOTICE_US = 1_500_000, 90 * SECOND_US
_END_US = 2**53


def pause_us(left_us: int, age_us: int) -> int:
    """How long until the next poll, for a call with `left_us` to wait at a key that changed `age_us` ago."""
    least_us = max(QUICK_US, min(SLOW_US, age_us // 2))
    length_us = max(least_us, min(LONGEST_US, left_us // PART))
    from random import randrange  # noqa: PLC0415 - only a process that polls loads it

    return length_us + randrange(length_us // JITTER)  # noqa: S311 - no secret


def notice_us(left_us: int) -> int:
    """How far ahead to end a hold with `left_us` to go: later than any process polls and has its answer.

    A call that heard of it too late would leave late, right next to those behind it.
    """
    return max(LEAST_NOTICE_US, min(MOST_NOTICE_US, left_us // NOTICE_PART))


class Watch:
    """A key whose calls wait: the last answer, when it last changed, and the alarms to set when it does."""

    __slots__ = ("__weakref__", "_alarms", "_heard", "changed_us", "version")

    def __init__(self, now_us: int) -> None:
        self._alarms: dict[Alarm, None] = {}
        self._heard: dict[object, tuple[int, KeyState]] = {}
        self.changed_us = now_us
        self.version = object()
        """A new object after each change."""

    def hear(self, queue: object, key_state: KeyState, asked_us: int) -> None:
        """Take in the store's answer to a question asked at `asked_us`."""
        known = self._heard.get(queue)
        if known is not None and known[0] > asked_us:
            return
        self._heard[queue] = asked_us, key_state
        if known is None or not key_state.is_like(known[1]):
            self.changed_us = asked_us
            self.ring()

    def since(self, queue: object, than_us: int) -> tuple[int, KeyState] | None:
        """The last answer and when it was asked for; None if that was not after `than_us`."""
        known = self._heard.get(queue)
        return known if known is not None and known[0] > than_us else None

    def forget(self, now_us: int, *, is_news: bool) -> None:
        """Forget the answers: this process has changed the key.

        Takes no lock, because a coroutine that is thrown away may get here.
        """
        self._heard = {}
        if is_news:
            self.changed_us = now_us
            self.ring()

    def ring(self) -> None:
        """Announce a change."""
        self.version = object()
        for alarm in list(self._alarms):
            alarm.set()

    def begin(self) -> None:
        """Without waiting calls: in a forked child."""
        self._alarms = {}
        self._heard = {}

    def add(self, alarm: Alarm) -> None:
        """Set the alarm at the next change."""
        self._alarms[alarm] = None

    def discard(self, alarm: Alarm) -> None:
        """Remove the alarm of a sleeper that is awake."""
        self._alarms.pop(alarm, None)


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


class Limits(Watch):
    """What operators may change while calls wait that are under one name: one of them asks for all.

    Any question to the store tells. So a call that polls asks about its own key, and what it hears wakes the
    others.
    """

    __slots__ = ("_dues", "_hears_all", "_poller", "settings")

    def __init__(self, settings: Settings, now_us: int, *, hears_all: bool) -> None:
        super().__init__(now_us)
        self.settings = settings
        self._hears_all = hears_all
        self._poller: Alarm | None = None
        self._dues: dict[Alarm, int] = {}

    def begin(self) -> None:
        """Without waiting calls: in a forked child."""
        super().begin()
        self._poller, self._dues = None, {}

    def until_us(self, alarm: Alarm, now_us: int, due_us: int) -> int:
        """When a call that sleeps until its slot has to ask, if nothing wakes it before."""
        self._dues[alarm] = due_us
        if self._poller is None and self._is_far(due_us, now_us):
            self._poller = alarm
        if self._poller is not alarm:
            if self._poller is None:
                self.hand_over(now_us)
            return _END_US
        if self._hears_all:
            ends_us = self.settings.known.ends_us
            return _END_US if ends_us is None else ends_us
        # Whoever leaves next asks in any case, and what it hears wakes the others.
        next_us = min(list(self._dues.values()), default=due_us)
        return now_us + pause_us(max(0, next_us - now_us), 0)

    def discard(self, alarm: Alarm) -> None:
        """Remove the alarm of a sleeper that is awake."""
        super().discard(alarm)
        self._dues.pop(alarm, None)
        if self._poller is alarm:
            self._poller = None

    def hand_over(self, now_us: int) -> None:
        """Wake the call that waits longest, so that it asks, if none does. Takes no lock, as
        `Watch.forget` does not.
        """
        if self._poller is None and self._dues:
            due_us, alarm = max([(due_us, alarm) for alarm, due_us in list(self._dues.items())], key=_first)
            if self._is_far(due_us, now_us):
                alarm.set()

    def _is_far(self, due_us: int, now_us: int) -> bool:
        """Whether an answer comes before the slot: one under way then would let other calls leave first."""
        return self._hears_all or due_us - now_us >= 2 * QUICK_US


class KeyPoller:
    """How one waiting call polls its keys and hears of changes."""

    __slots__ = ("_heard_us", "_look_us", "_seen", "_status", "_watched", "_watches", "keys")

    def __init__(self, status: KeyStatus, keys: Iterable[str], heard_us: int, *beside: Watch) -> None:
        self._status = status
        self.keys = tuple(keys)
        self._watched = {key: status.watch(key) for key in self.keys}
        self._watches = (*self._watched.values(), *beside)
        self._heard_us = heard_us
        self._look_us: int | None = None
        # If every change of a key is announced, one may have been before this poller was made.
        self._seen = [None if status.hears_all else watch.version for watch in self._watched.values()]
        self._seen += [watch.version for watch in beside]

    def until_us(self, due_us: int) -> int:
        """Until when to sleep, unless something changes, before polling for a slot due at `due_us`."""
        if self._look_us is None:
            if self._status.hears_all or not self.keys:
                self._look_us = _END_US
            else:
                age_us = self._heard_us - max(
                    [watch.changed_us for watch in self._watched.values()], default=0
                )
                self._look_us = self._heard_us + pause_us(max(0, due_us - self._heard_us), age_us)
                if due_us - self._look_us < QUICK_US:
                    # An answer under way when the slot comes would let other calls leave first, and a call
                    # asks before it leaves anyway. No hold ends sooner: see `notice_us`.
                    self._look_us = due_us
        return min(due_us, self._look_us)

    def begin_wait(self, alarm: Alarm) -> None:
        """Set the alarm when something changes."""
        for watch in self._watches:
            watch.add(alarm)
        if self._has_news():
            alarm.set()

    def end_wait(self, alarm: Alarm) -> None:
        """Remove the alarm after the sleep."""
        for watch in self._watches:
            watch.discard(alarm)

    def is_time(self, now_us: int) -> bool:
        """Whether something has changed, or the next poll is due."""
        return (self._look_us is not None and now_us >= self._look_us) or self._has_news()

    async def look(self, driver: Driver) -> list[KeyState]:
        """The states of the keys: from answers that this process got since the last look, else from the
        store.
        """
        self._seen = [watch.version for watch in self._watches]
        than_us = self._heard_us
        told = [await self._status.looking(driver, key, than_us) for key in self._watched]
        self._heard_us = min([asked_us for asked_us, _ in told], default=than_us)
        self._look_us = None
        return [key_state for _, key_state in told]

    def _has_news(self) -> bool:
        return any(watch.version is not seen for watch, seen in zip(self._watches, self._seen, strict=True))


FRESH_US = 10_000
"""How old a question may be whose answer is reused."""
_ENOUGH = 2
"""How many trips show what a quick one is: the first ones connect, and load what they need."""
_SLOWLY = 16
"""By which part of itself a trip is taken to be longer with each slow answer."""
_DRIFT = 5_000
"""Two clocks drift apart by less than 1 µs in this many."""
STUCK_S = 5.0
"""How long to wait for a question that another call has asked, in case its event loop was stopped."""


class KeyState(NamedTuple):
    """The state of a key."""

    generation: int
    """The generation of the key, new after each reset; UNKNOWN if the key is not in use."""
    shift_us: int
    """How far all departures are shifted from the queue's own time."""
    until_us: int
    """Until when the key is held, on the store's clock."""
    ahead_us: int
    """How far the clock that callers sleep by is ahead of the store's."""
    clock: tuple[int, ...] = ()
    """For an adaptive rate: what the queue's clock showed at `until_us`, and the share of the full rate it
    runs at.
    """
    mark_us: int = 0
    """Until when a part of the key is held, on the store's clock."""

    changes: Moves = ()
    """How waiting calls have moved as operators changed the limits."""
    queue: LeakyQueue | None = None
    """Whose numbers are in force, if operators have ever set any."""

    def is_like(self, other: KeyState) -> bool:
        """Whether both mean the same for the calls that wait at the key."""
        return (self[:3], self.clock) == (other[:3], other.clock)


class _Question:
    """A question to the store, and the alarms of the calls that wait for its answer."""

    __slots__ = ("_alarms", "answer", "asked_us", "error", "is_open", "queue")

    def __init__(self, queue: LeakyQueue, asked_us: int) -> None:
        self.queue = queue
        self.asked_us = asked_us
        self.is_open = True
        self.answer: KeyState | None = None
        self.error: Exception | None = None
        self._alarms: list[Alarm] = []

    def serves(self, now_us: int) -> bool:
        """Whether a call that asks now may use its answer."""
        return 0 <= now_us - self.asked_us <= FRESH_US and (self.is_open or self.answer is not None)

    def ring(self, alarm: Alarm) -> None:
        """Set the alarm once there is an answer; check `is_open` before waiting for it."""
        self._alarms.append(alarm)

    def close(self) -> None:
        """Wake all calls that wait for the answer."""
        self.is_open = False
        alarms, self._alarms = self._alarms, []
        for alarm in alarms:
            alarm.set()

    def told(self) -> KeyState | None:
        """The answer; None if the call that asked has gone."""
        if self.error is not None:
            raise self.error
        return self.answer


class StoreClock:
    """What the answers of a store tell of time: how far the clock that callers sleep by is ahead of the
    store's, and how long a trip takes.

    An answer that tells the store's time is some time on its way, so each one shows too much by that, and the
    least is nearest to the truth; what a question shows that left before it is too little.
    """

    __slots__ = ("_heard", "_known", "_trip_us")

    def __init__(self) -> None:
        self._heard = 0
        self._known: tuple[int, int] | None = None
        self._trip_us = 0

    def hear(self, asked_us: int, there_us: int, now_us: int) -> int:
        """Take in an answer that came now; returns how far ahead this clock is."""
        ahead_us = self.ahead_us(there_us, now_us)
        if ahead_us is None or ahead_us < asked_us - there_us:
            ahead_us = now_us - there_us
        self._known = ahead_us, now_us
        trip_us, known_us = max(0, now_us - asked_us), self._trip_us
        is_quick = not self._heard or trip_us < known_us
        # A single slow answer, as after a stop of this process, does not show that the store is far away.
        self._trip_us = trip_us if is_quick else min(trip_us, known_us + known_us // _SLOWLY + 1)
        self._heard += 1
        return ahead_us

    @property
    def trip_us(self) -> int:
        """How long a quick trip takes; 0 until enough were made to tell."""
        return self._trip_us if self._heard >= _ENOUGH else 0

    def ahead_us(self, there_us: int, now_us: int) -> int | None:
        """How far ahead this clock is, if it shows `now_us` and the store has just answered `there_us`.

        None if nothing was heard before.
        """
        if self._known is None:
            return None
        ahead_us, since_us = self._known
        return min(now_us - there_us, ahead_us + max(0, now_us - since_us) // _DRIFT)


class _Questions:
    """The questions that this process has asked one store, by name and key; old ones are dropped."""

    def __init__(self) -> None:
        self._limits: dict[str, Limits] = {}
        self.begin()
        _QUESTIONS.add(self)

    def begin(self) -> None:
        """Start empty: at first, and in a forked child, because the answers go to its parent."""
        self._lock = forks.lock()
        self.clock = StoreClock()
        self._asked: dict[tuple[str, str], _Question] = {}
        self._watches: WeakValueDictionary[tuple[str, str], Watch] = WeakValueDictionary()
        self._swept_us = 0
        for limits in self._limits.values():
            limits.begin()

    def shared(
        self, place: tuple[str, str], queue: LeakyQueue, alarm: Alarm, now_us: int
    ) -> tuple[_Question, bool]:
        """A question whose answer can be shared, with the alarm added; or a new one and True, for the caller
        to ask.
        """
        with self._lock:
            question = self._asked.get(place)
            # A queue of other numbers reads the same state but gives its generation another number.
            if question is not None and question.serves(now_us) and question.queue == queue:
                question.ring(alarm)
                return question, False
            return self._put(place, queue, now_us), True

    def anew(self, place: tuple[str, str], queue: LeakyQueue, now_us: int) -> _Question:
        """A new question, whatever was asked before."""
        with self._lock:
            return self._put(place, queue, now_us)

    def limits(self, settings: Settings, now_us: int, *, hears_all: bool) -> Limits:
        """What all calls that wait under a name share."""
        with self._lock:
            limits = self._limits.get(settings.name)
            if limits is None:
                limits = self._limits[settings.name] = Limits(settings, now_us, hears_all=hears_all)
                settings.listen(self.overrides_changed)
            return limits

    def overrides_changed(self, name: str, *_: object) -> None:
        """Forget what was known under a name whose limits were changed, and wake its waiting calls.

        May be said under the lock of a store, and takes none.
        """
        for place in [place for place in list(self._asked) if place[0] == name]:
            self._asked.pop(place, None)
        for place, watch in list(self._watches.items()):
            if place[0] == name:
                watch.forget(watch.changed_us, is_news=True)
        if (limits := self._limits.get(name)) is not None:
            limits.ring()

    def forget(self, place: tuple[str, str], now_us: int, *, is_news: bool) -> None:
        """Forget what is known about a key that this process has changed; if that is news for the calls that
        wait there, wake them.

        Takes no lock, as `_Question.close` does not.
        """
        self._asked.pop(place, None)
        if (watch := self._watches.get(place)) is not None:
            watch.forget(now_us, is_news=is_news)

    def drop(self, place: tuple[str, str], question: _Question) -> None:
        """Drop a question that failed. Takes no lock either."""
        if self._asked.get(place) is question:
            self._asked.pop(place, None)

    def watch(self, place: tuple[str, str], now_us: int) -> Watch:
        """The watch that all calls waiting at the key share, as long as there are any."""
        with self._lock:
            watch = self._watches.get(place)
            if watch is None:
                watch = self._watches[place] = Watch(now_us)
            return watch

    def hear(self, place: tuple[str, str], question: _Question) -> None:
        """Take in the answer to a question."""
        # The answer to a forgotten question may be from before the change.
        if question.answer is not None and self._asked.get(place) is question:
            watch = self._watches.get(place)
            if watch is not None:
                watch.hear(question.queue, question.answer, question.asked_us)

    def _put(self, place: tuple[str, str], queue: LeakyQueue, now_us: int) -> _Question:
        if not 0 <= now_us - self._swept_us <= FRESH_US:
            for other, question in list(self._asked.items()):
                if not question.serves(now_us):
                    self._asked.pop(other, None)
            self._swept_us = now_us
        question = self._asked[place] = _Question(queue, now_us)
        return question


_QUESTIONS = forks.begin_anew(_Questions.begin)


class KeyStatus:
    """The questions of one shaper, shared with all shapers of the same name in its process."""

    is_direct: ClassVar[bool] = True
    """Whether every slot comes from the store at the time of its call."""

    def __init__(self, store: Store, name: str, queue: LeakyQueue) -> None:
        self.instant = store.instant
        self.hears_all = store.instant and not store.shared
        """Whether only this process can change a key, so that polling finds nothing."""
        self._clock = store.clock
        self._clock_decides = store.clock_decides
        self._confirm = store.twin(name, queue, CONFIRM)
        self._follow = store.twin(name, queue, FOLLOW)
        self._name = name
        self._queue = queue
        self._questions = companion(store, "questions", _Questions)
        self._settings = store.settings(name)
        self.limits = self._questions.limits(self._settings, store.clock.now_us(), hears_all=self.hears_all)

    async def ask(self, driver: Driver, key: str) -> KeyState:
        """The state of a key, at most 10 ms old."""
        if self.instant:
            if self._settings.known.stored.version:
                return self._followed(self._follow.call(key), 0)
            return self._standing(self._confirm.call(key), 0)
        while True:
            alarm = driver.alarm()
            question, is_mine = self._shared(key, alarm)
            if is_mine:
                break
            if question.is_open:
                await driver.wait(alarm, STUCK_S)
                if question.is_open:
                    question = self._questions.anew((self._name, key), self._queue, self._clock.now_us())
                    break
            if (told := question.told()) is not None:
                return told
        driver.may_be_thrown()
        try:
            question.answer = await self._answered(driver, key, question.asked_us)
        except BaseException as error:
            await driver.given_back(error, partial(self._failed, key, question, error), question.close)
            raise
        question.close()
        self._questions.hear((self._name, key), question)
        return question.answer

    async def _answered(self, driver: Driver, key: str, asked_us: int) -> KeyState:
        """What the store says. Once operators have set something, what has become of the key by that is kept
        there: else each look would find another moment of the change.
        """
        if not self._settings.known.stored.version:
            confirmed = await driver.ask(self._confirm, key)
            if not self._settings.known.stored.version:
                return self._standing(confirmed, asked_us)
        return self._followed(await driver.ask(self._follow, key), asked_us)

    async def leaving(self, driver: Driver, key: str) -> KeyState:
        """`ask`, for a call that is about to leave."""
        return await self.ask(driver, key)

    def watch(self, key: str) -> Watch:
        """The watch of a key at which calls wait."""
        return self._questions.watch((self._name, key), self._clock.now_us())

    async def looking(self, driver: Driver, key: str, than_us: int) -> tuple[int, KeyState]:
        """The state of a key, and when it was asked for: an answer since `than_us` is reused."""
        known = self.watch(key).since(self._queue, than_us)
        return (self._clock.now_us(), await self.ask(driver, key)) if known is None else known

    def changing(self, change: Twin[Any], *, is_news: bool = True) -> Twin[Any]:
        """Wrap an operation that changes a key: what is known about it is forgotten. Waiting calls are woken,
        unless all that they could hear is that they have to wait longer.
        """

        def changed(key: str, *args: Any) -> Any:
            try:
                return change.call(key, *args)
            finally:
                self._forget(key, is_news=is_news)

        async def achanged(key: str, *args: Any) -> Any:
            try:
                return await change.acall(key, *args)
            finally:
                self._forget(key, is_news=is_news)

        return Twin(changed, achanged)

    def _shared(self, key: str, alarm: Alarm) -> tuple[_Question, bool]:
        return self._questions.shared((self._name, key), self._queue, alarm, self._clock.now_us())

    async def _failed(self, key: str, question: _Question, error: BaseException) -> None:
        if isinstance(error, Exception):
            question.error = error
            self._dropped(key, question)
        question.close()

    def _dropped(self, key: str, question: _Question) -> None:
        # The traceback of its error refers to the store and would keep it alive.
        self._questions.drop((self._name, key), question)

    def _forget(self, key: str, *, is_news: bool) -> None:
        self._questions.forget((self._name, key), self._clock.now_us(), is_news=is_news)

    def _standing(self, confirmed: tuple[int, ...], asked_us: int) -> KeyState:
        generation, shift, until, there, mark, *clock = confirmed
        ahead = 0 if self.instant else self.hear(asked_us, there)
        return KeyState(generation, shift, until, ahead, tuple(clock), mark)

    def _followed(self, told: tuple[Any, ...], asked_us: int) -> KeyState:
        *confirmed, changes, queue = told
        return self._standing(tuple(confirmed), asked_us)._replace(changes=changes, queue=queue)

    def hear(self, asked_us: int, there_us: int) -> int:
        """Take in the store's time in an answer; returns how far ahead the clock is that callers sleep by."""
        ahead_us = self._questions.clock.hear(asked_us, there_us, self._clock.now_us())
        return 0 if self._clock_decides else ahead_us

    @property
    def trip_us(self) -> int:
        """How long a quick trip to the store takes, for a call that is about to leave."""
        return self._questions.clock.trip_us if self.is_direct else 0

    def ahead_us(self, there_us: int) -> int | None:
        """How far ahead the clock is that callers sleep by, if the store has just answered `there_us`.

        None if that is not known yet.
        """
        return 0 if self._clock_decides else self._questions.clock.ahead_us(there_us, self._clock.now_us())
