"""Key status: what waiters ask right before they leave, so that holds placed meanwhile move them.

Where asking is a trip, all who leave one key within 20 ms share one question: the first sends it, those
who come while it is on its way wait for its answer, and those who come later use the answer again. What
this process itself has changed meanwhile, nobody is told from before: the question is forgotten.

Watches: what a process knows of a key at which its calls wait for a slot that may come at another time.

That is so while the key is held, for the hold may be ended or prolonged, and where the rate is found. Of what
its own process changes there, a call hears at once. What other processes change, it finds when it looks,
and one question serves all who wait at the key: the first that looks asks, those who would look next go by
that answer, and an answer that says something new wakes all, so that they leave in order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary, finalize

from shapekit._runtime import forks
from shapekit._runtime.drivers import Alarm, Driver, Twin
from shapekit.algorithms.queue.queue import CONFIRM, LeakyQueue
from shapekit.rate import SECOND_US
from shapekit.stores.base import Store

__all__ = ["AT_ONCE_US", "Lookout", "Watch", "notice_us", "pause_us"]

QUICK_US = SECOND_US // 4
"""How long a key is let alone on which something has just changed."""
SLOW_US = SECOND_US
"""How long at least, where nothing has changed for two seconds."""
PART = 20
"""How long at least, as a part of what is left to wait;"""
LONGEST_US = 60 * SECOND_US
"""but not longer than this, so that a hold of a day can be ended in a minute or two."""
JITTER = 4
"""Up to what part of it longer, at random, so that processes do not ask in step."""
AT_ONCE_US = SECOND_US // 4
"""How far ahead a hold is ended where all who wait hear of that at once."""
NOTICE_PART = 12
LEAST_NOTICE_US, MOST_NOTICE_US = 1_500_000, 90 * SECOND_US
_END_US = 2**53


def pause_us(left_us: int, age_us: int) -> int:
    """How long to let a key alone for a call that has so long to wait, where something changed `age` ago."""
    least_us = max(QUICK_US, min(SLOW_US, age_us // 2))
    length_us = max(least_us, min(LONGEST_US, left_us // PART))
    return length_us + random.randrange(length_us // JITTER)  # noqa: S311 - no secret


def notice_us(left_us: int) -> int:
    """How far ahead a hold is ended that has so long to go: later than any process looks, and has its answer.

    A call that heard of it too late would leave late, right beside those that follow.
    """
    return max(LEAST_NOTICE_US, min(MOST_NOTICE_US, left_us // NOTICE_PART))


class Watch:
    """Of one key: what was heard last, when it was last something new, and who wants to hear of it."""

    __slots__ = ("__weakref__", "_alarms", "_heard", "changed_us", "version")

    def __init__(self, now_us: int) -> None:
        self._alarms: dict[Alarm, None] = {}
        self._heard: dict[object, tuple[int, Standing]] = {}
        self.changed_us = now_us
        self.version = object()
        """Another one after each piece of news."""

    def hear(self, queue: object, standing: Standing, asked_us: int) -> None:
        """How the key stands, as the store has said who was asked then."""
        known = self._heard.get(queue)
        if known is not None and known[0] > asked_us:
            return
        self._heard[queue] = asked_us, standing
        if known is None or not standing.is_like(known[1]):
            self.changed_us = asked_us
            self.ring()

    def since(self, queue: object, than_us: int) -> tuple[int, Standing] | None:
        """What was heard last, and when that was asked; None if not after this instant."""
        known = self._heard.get(queue)
        return known if known is not None and known[0] > than_us else None

    def forget(self, now_us: int) -> None:
        """The key was changed here. Takes no lock: a coroutine that is thrown away comes by here."""
        self._heard = {}
        self.changed_us = now_us
        self.ring()

    def ring(self) -> None:
        """There is news."""
        self.version = object()
        for alarm in list(self._alarms):
            alarm.set()

    def add(self, alarm: Alarm) -> None:
        """Set the alarm when there is news."""
        self._alarms[alarm] = None

    def discard(self, alarm: Alarm) -> None:
        """Its sleeper is awake."""
        self._alarms.pop(alarm, None)


class Lookout:
    """How one call that waits at some keys goes on hearing of them."""

    __slots__ = ("_heard_us", "_look_us", "_seen", "_status", "_watched", "_watches")

    def __init__(self, status: KeyStatus, keys: Iterable[str], heard_us: int, *beside: Watch) -> None:
        self._status = status
        self._watched = {key: status.watch(key) for key in keys}
        self._watches = (*self._watched.values(), *beside)
        self._heard_us = heard_us
        self._look_us: int | None = None
        # Where all news is told, it may have been told before this began to listen.
        self._seen = [None if status.hears_all else watch.version for watch in self._watches]

    def until_us(self, due_us: int) -> int:
        """Until when to sleep, unless there is news, before looking how a slot stands that is due then."""
        if self._look_us is None:
            if self._status.hears_all:
                self._look_us = _END_US
            else:
                age_us = self._heard_us - max(
                    [watch.changed_us for watch in self._watched.values()], default=0
                )
                self._look_us = self._heard_us + pause_us(max(0, due_us - self._heard_us), age_us)
                if due_us - self._look_us < QUICK_US:
                    # An answer that is on its way when the slot comes would let others go first, and a call
                    # asks before it leaves. No hold ends sooner: see `notice_us`.
                    self._look_us = due_us
        return min(due_us, self._look_us)

    def lie_down(self, alarm: Alarm) -> None:
        """Say what ends the sleep where there is news."""
        for watch in self._watches:
            watch.add(alarm)
        if self._has_news():
            alarm.set()

    def get_up(self, alarm: Alarm) -> None:
        """The sleep is over."""
        for watch in self._watches:
            watch.discard(alarm)

    def is_time(self, now_us: int) -> bool:
        """Whether there is news, or it is time to look."""
        return (self._look_us is not None and now_us >= self._look_us) or self._has_news()

    async def look(self, driver: Driver) -> list[Standing]:
        """How the keys stand: as this process has heard since it was here last, else as the store says."""
        self._seen = [watch.version for watch in self._watches]
        than_us = self._heard_us
        told = [await self._status.looking(driver, key, than_us) for key in self._watched]
        self._heard_us = min([asked_us for asked_us, _ in told], default=than_us)
        self._look_us = None
        return [standing for _, standing in told]

    def _has_news(self) -> bool:
        return any(watch.version is not seen for watch, seen in zip(self._watches, self._seen, strict=True))


FRESH_US = 20_000
"""How long ago a question may have been sent whose answer somebody still leaves by."""
STUCK_S = 5.0
"""How long to wait for what another has asked, whose loop may have been stopped for good."""


class Standing(NamedTuple):
    """How a key stands."""

    generation: int
    """Which life of the key this is; UNKNOWN where it is cold."""
    shift_us: int
    """How much later than on the queue's own time everybody leaves."""
    until_us: int
    """Until when it is held, on the store's clock."""
    ahead_us: int
    """How far the clock that callers sleep by is ahead of the store's."""
    clock: tuple[int, ...] = ()
    """Where the rate changes, what the queue's clock showed at `until_us`, and at what share it runs."""
    mark_us: int = 0
    """Until when a part of the key is held, on the store's clock."""

    def is_like(self, other: Standing) -> bool:
        """Whether it says the same of the key to all who wait there."""
        return (self[:3], self.clock) == (other[:3], other.clock)


class _Question:
    """One question, and who waits for its answer."""

    __slots__ = ("_alarms", "answer", "asked_us", "error", "is_open", "queue")

    def __init__(self, queue: LeakyQueue, asked_us: int) -> None:
        self.queue = queue
        self.asked_us = asked_us
        self.is_open = True
        self.answer: Standing | None = None
        self.error: Exception | None = None
        self._alarms: list[Alarm] = []

    def serves(self, now_us: int) -> bool:
        """Whether its answer serves somebody who asks now."""
        return 0 <= now_us - self.asked_us <= FRESH_US and (self.is_open or self.answer is not None)

    def ring(self, alarm: Alarm) -> None:
        """Set the alarm when there is an answer; look at `is_open` before waiting for it."""
        self._alarms.append(alarm)

    def close(self) -> None:
        """Tell everybody who waits."""
        self.is_open = False
        alarms, self._alarms = self._alarms, []
        for alarm in alarms:
            alarm.set()

    def told(self) -> Standing | None:
        """What was answered; None if whoever asked has gone."""
        if self.error is not None:
            raise self.error
        return self.answer


class _Questions:
    """The questions that this process asks one store, by name and key; those of no more use are forgotten."""

    def __init__(self) -> None:
        self.begin()
        _QUESTIONS.add(self)

    def begin(self) -> None:
        """With nothing asked: at first, and in a forked child, where its parent hears the answers."""
        self._lock = forks.lock()
        self._asked: dict[tuple[str, str], _Question] = {}
        self._watches: WeakValueDictionary[tuple[str, str], Watch] = WeakValueDictionary()
        self._swept_us = 0

    def shared(
        self, place: tuple[str, str], queue: LeakyQueue, alarm: Alarm, now_us: int
    ) -> tuple[_Question, bool]:
        """The question that serves, which rings the alarm; or a new one, and True: to be asked now."""
        with self._lock:
            question = self._asked.get(place)
            # Queues of other numbers read the same state, but call its life by another number.
            if question is not None and question.serves(now_us) and question.queue == queue:
                question.ring(alarm)
                return question, False
            return self._put(place, queue, now_us), True

    def anew(self, place: tuple[str, str], queue: LeakyQueue, now_us: int) -> _Question:
        """A question to be asked now, whatever was asked before."""
        with self._lock:
            return self._put(place, queue, now_us)

    def forget(self, place: tuple[str, str], now_us: int) -> None:
        """The key was changed here: all who wait there hear of it, and the next question is asked anew.

        Takes no lock, as `_Question.close` does not.
        """
        self._asked.pop(place, None)
        if (watch := self._watches.get(place)) is not None:
            watch.forget(now_us)

    def drop(self, place: tuple[str, str], question: _Question) -> None:
        """A question that failed serves nobody. Takes no lock either."""
        if self._asked.get(place) is question:
            self._asked.pop(place, None)

    def watch(self, place: tuple[str, str], now_us: int) -> Watch:
        """That of all who wait there, while any do."""
        with self._lock:
            watch = self._watches.get(place)
            if watch is None:
                watch = self._watches[place] = Watch(now_us)
            return watch

    def hear(self, place: tuple[str, str], question: _Question) -> None:
        """A question was answered."""
        # What was forgotten meanwhile may have been answered from before the change.
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


_QUESTIONS: forks.Living[_Questions] = forks.Living()
_ASKED: dict[int, _Questions] = {}
"""By the id of the store, while it lives: a store need not be hashable."""
_lock = threading.Lock()


def _questions_to(store: Store) -> _Questions:
    with _lock:
        if id(store) not in _ASKED:
            _ASKED[id(store)] = _Questions()
            finalize(store, _ASKED.pop, id(store))
        return _ASKED[id(store)]


def _forked() -> None:
    global _lock  # noqa: PLW0603 - it may have been held by a thread that is not here
    _lock = threading.Lock()
    for questions in _QUESTIONS:
        questions.begin()


forks.in_child(_forked)


class KeyStatus:
    """What one shaper asks; the questions are those of its process."""

    def __init__(self, store: Store, name: str, queue: LeakyQueue) -> None:
        self.instant = store.instant
        self.hears_all = store.instant and not store.shared
        """Whether only this process can change a key, so that there is nothing to look for."""
        self._clock = store.clock
        self._clock_decides = store.clock_decides
        self._confirm = store.twin(name, queue, CONFIRM)
        self._name = name
        self._queue = queue
        self._questions = _questions_to(store)

    async def ask(self, driver: Driver, key: str) -> Standing:
        """How the key stands, or stood at most 20 ms ago."""
        if self.instant:
            return self._standing(self._confirm.call(key))
        while True:
            alarm = driver.alarm()
            question, is_mine = self._shared(key, alarm)
            if is_mine:
                break
            if question.is_open:
                await driver.wait(alarm, STUCK_S)
                if question.is_open:
                    question = self._anew(key)
                    break
            if (told := question.told()) is not None:
                return told
        driver.may_be_thrown()
        try:
            question.answer = self._standing(await driver.ask(self._confirm, key))
        except BaseException as error:
            await driver.given_back(error, partial(self._failed, key, question, error), question.close)
            raise
        question.close()
        self._questions.hear((self._name, key), question)
        return question.answer

    async def leaving(self, driver: Driver, key: str) -> Standing:
        """`ask`, for a call that is about to leave."""
        return await self.ask(driver, key)

    def watch(self, key: str) -> Watch:
        """What is known here of a key at which calls wait."""
        return self._questions.watch((self._name, key), self._clock.now_us())

    async def looking(self, driver: Driver, key: str, than_us: int) -> tuple[int, Standing]:
        """How a key stands, and when that was asked: what was heard here since an instant will do."""
        known = self.watch(key).since(self._queue, than_us)
        return (self._clock.now_us(), await self.ask(driver, key)) if known is None else known

    def changing(self, change: Twin[Any]) -> Twin[Any]:
        """An operation on a key of which all who wait there hear, and nothing here is as it was before it."""

        def changed(key: str, *args: Any) -> Any:
            try:
                return change.call(key, *args)
            finally:
                self._forget(key)

        async def achanged(key: str, *args: Any) -> Any:
            try:
                return await change.acall(key, *args)
            finally:
                self._forget(key)

        return Twin(changed, achanged)

    def _shared(self, key: str, alarm: Alarm) -> tuple[_Question, bool]:
        return self._questions.shared((self._name, key), self._queue, alarm, self._clock.now_us())

    def _anew(self, key: str) -> _Question:
        return self._questions.anew((self._name, key), self._queue, self._clock.now_us())

    async def _failed(self, key: str, question: _Question, error: BaseException) -> None:
        if isinstance(error, Exception):
            question.error = error
            self._dropped(key, question)
        question.close()

    def _dropped(self, key: str, question: _Question) -> None:
        # The traceback of its error holds the store, and would keep it alive.
        self._questions.drop((self._name, key), question)

    def _forget(self, key: str) -> None:
        self._questions.forget((self._name, key), self._clock.now_us())

    def _standing(self, confirmed: tuple[int, ...]) -> Standing:
        generation, shift, until, now, mark, *clock = confirmed
        ahead = 0 if self._clock_decides else self._clock.now_us() - now
        return Standing(generation, shift, until, ahead, tuple(clock), mark)
