"""Confirmations: what waiters ask right before they leave, so that holds placed meanwhile move them.

Where asking is a trip, all who leave one key within 20 ms share one question: the first sends it, those
who come while it is on its way wait for its answer, and those who come later use the answer again. What
this process itself has changed meanwhile, nobody is told from before: the question is forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from weakref import finalize

from shapekit.alarm import AsyncAlarm
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.stores.base import Apply, Store

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


class _Question:
    """One question, and who waits for its answer."""

    __slots__ = ("_alarms", "answer", "asked_us", "error", "is_open", "queue")

    def __init__(self, queue: LeakyQueue, asked_us: int) -> None:
        self.queue = queue
        self.asked_us = asked_us
        self.is_open = True
        self.answer: Standing | None = None
        self.error: Exception | None = None
        self._alarms: list[threading.Event | AsyncAlarm] = []

    def serves(self, now_us: int) -> bool:
        """Whether its answer serves somebody who asks now."""
        return 0 <= now_us - self.asked_us <= FRESH_US and (self.is_open or self.answer is not None)

    def ring(self, alarm: threading.Event | AsyncAlarm) -> None:
        """Set the alarm when there is an answer; look at `is_open` before waiting for it."""
        self._alarms.append(alarm)

    def close(self) -> None:
        """Tell everybody who waits. Takes no lock: a coroutine that is thrown away comes by here."""
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
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, str], _Question] = {}
        self._swept_us = 0

    def shared(
        self, place: tuple[str, str], queue: LeakyQueue, alarm: threading.Event | AsyncAlarm, now_us: int
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

    def forget(self, place: tuple[str, str]) -> None:
        """Whoever asks from now on asks anew. Takes no lock, as `_Question.close` does not."""
        self._asked.pop(place, None)

    def _put(self, place: tuple[str, str], queue: LeakyQueue, now_us: int) -> _Question:
        if not 0 <= now_us - self._swept_us <= FRESH_US:
            for other, question in list(self._asked.items()):
                if not question.serves(now_us):
                    self.forget(other)
            self._swept_us = now_us
        question = self._asked[place] = _Question(queue, now_us)
        return question


_ASKED: dict[int, _Questions] = {}
"""By the id of the store, while it lives: a store need not be hashable."""
_lock = threading.Lock()


def _questions_to(store: Store) -> _Questions:
    with _lock:
        if id(store) not in _ASKED:
            _ASKED[id(store)] = _Questions()
            finalize(store, _ASKED.pop, id(store))
        return _ASKED[id(store)]


class Confirmations:
    """What one shaper asks; the questions are those of its process."""

    def __init__(self, store: Store, name: str, queue: LeakyQueue) -> None:
        self.instant = store.instant
        self._clock = store.clock
        self._clock_decides = store.clock_decides
        self._confirm = store.bind(name, queue, "confirm")
        self._aconfirm = store.abind(name, queue, "confirm")
        self._name = name
        self._queue = queue
        self._questions = _questions_to(store)

    def ask(self, key: str) -> Standing:
        """How the key stands, or stood at most 20 ms ago."""
        if self.instant:
            return self._standing(self._confirm(key))
        while True:
            alarm = threading.Event()
            question, is_mine = self._shared(key, alarm)
            if is_mine:
                break
            if question.is_open and not alarm.wait(STUCK_S):
                question = self._anew(key)
                break
            if (told := question.told()) is not None:
                return told
        try:
            question.answer = self._standing(self._confirm(key))
        except Exception as error:
            question.error = error
            # Its traceback holds the store, and would keep it alive.
            self._forget(key)
            raise
        finally:
            question.close()
        return question.answer

    async def aask(self, key: str) -> Standing:
        """`ask`, awaitable."""
        while True:
            alarm = AsyncAlarm()
            question, is_mine = self._shared(key, alarm)
            if is_mine:
                break
            if question.is_open:
                await alarm.wait(STUCK_S)
                if question.is_open:
                    question = self._anew(key)
                    break
            if (told := question.told()) is not None:
                return told
        try:
            question.answer = self._standing(await self._aconfirm(key))
        except Exception as error:
            question.error = error
            # Its traceback holds the store, and would keep it alive.
            self._forget(key)
            raise
        finally:
            question.close()
        return question.answer

    def leaving(self, key: str) -> Standing:
        """`ask`, for whoever is about to leave."""
        return self.ask(key)

    async def aleaving(self, key: str) -> Standing:
        """`leaving`, awaitable."""
        return await self.aask(key)

    def changing(self, change: Apply) -> Apply:
        """An operation on a key after which nobody here is told how the key stood before it."""
        if self.instant:
            return change

        def changed(key: str, *args: Any) -> Any:
            try:
                return change(key, *args)
            finally:
                self._forget(key)

        return changed

    def achanging(self, change: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """`changing`, awaitable."""
        if self.instant:
            return change

        async def changed(key: str, *args: Any) -> Any:
            try:
                return await change(key, *args)
            finally:
                self._forget(key)

        return changed

    def _shared(self, key: str, alarm: threading.Event | AsyncAlarm) -> tuple[_Question, bool]:
        return self._questions.shared((self._name, key), self._queue, alarm, self._clock.now_us())

    def _anew(self, key: str) -> _Question:
        return self._questions.anew((self._name, key), self._queue, self._clock.now_us())

    def _forget(self, key: str) -> None:
        self._questions.forget((self._name, key))

    def _standing(self, confirmed: tuple[int, ...]) -> Standing:
        generation, shift, until, now, *clock = confirmed
        ahead = 0 if self._clock_decides else self._clock.now_us() - now
        return Standing(generation, shift, until, ahead, tuple(clock))
