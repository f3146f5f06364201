"""Confirmations: what waiters ask right before they leave, so that holds placed meanwhile move them.

Where asking is a trip, all who leave one key within 20 ms share one question: the first sends it, those
who come while it is on its way wait for its answer, and those who come later use the answer again.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from shapekit.alarm import AsyncAlarm
from shapekit.algorithms.leaky_queue import LeakyQueue
from shapekit.stores.base import Store

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


class _Question:
    """One question, and who waits for its answer."""

    __slots__ = ("_alarms", "answer", "asked_us", "error", "is_open")

    def __init__(self, asked_us: int) -> None:
        self.asked_us = asked_us
        self.is_open = True
        self.answer: Standing | None = None
        self.error: Exception | None = None
        self._alarms: list[threading.Event | AsyncAlarm] = []

    def is_shared(self, now_us: int) -> bool:
        """Whether its answer serves somebody who asks now."""
        return 0 <= now_us - self.asked_us <= FRESH_US and (self.is_open or self.answer is not None)

    def ring(self, alarm: threading.Event | AsyncAlarm) -> None:
        """Set the alarm when there is an answer; look at `is_open` before waiting for it."""
        self._alarms.append(alarm)

    def close(self) -> None:
        """Tell everybody who waits. Takes no lock: a coroutine that is thrown away comes by here."""
        self.is_open = False
        for alarm in self._alarms:
            alarm.set()

    def told(self) -> Standing | None:
        """What was answered; None if whoever asked has gone."""
        if self.error is not None:
            raise self.error
        return self.answer


class Confirmations:
    """The questions of one shaper, by key; those of no more use are forgotten."""

    def __init__(self, store: Store, name: str, queue: LeakyQueue) -> None:
        self.instant = store.instant
        self._clock = store.clock
        self._clock_decides = store.clock_decides
        self._confirm = store.bind(name, queue, "confirm")
        self._aconfirm = store.abind(name, queue, "confirm")
        self._lock = threading.Lock()
        self._questions: dict[str, _Question] = {}
        self._swept_us = 0

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
            raise
        finally:
            question.close()
        return question.answer

    def _shared(self, key: str, alarm: threading.Event | AsyncAlarm) -> tuple[_Question, bool]:
        """The question that serves, which rings the alarm; or a new one, and True: to be asked now."""
        with self._lock:
            now = self._clock.now_us()
            question = self._questions.get(key)
            if question is not None and question.is_shared(now):
                question.ring(alarm)
                return question, False
            return self._put(key, now), True

    def _anew(self, key: str) -> _Question:
        with self._lock:
            return self._put(key, self._clock.now_us())

    def _put(self, key: str, now: int) -> _Question:
        if not 0 <= now - self._swept_us <= FRESH_US:
            self._questions = {key: old for key, old in self._questions.items() if old.is_shared(now)}
            self._swept_us = now
        question = self._questions[key] = _Question(now)
        return question

    def _standing(self, confirmed: tuple[int, int, int, int]) -> Standing:
        generation, shift, until, now = confirmed
        return Standing(generation, shift, until, 0 if self._clock_decides else self._clock.now_us() - now)
