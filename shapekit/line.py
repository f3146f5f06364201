"""Line: who sleeps on one event loop, in the order in which they go.

A loop that comes late to its timers wakes those who are due in any order. So whoever wakes before its
turn lies down again, and whoever goes wakes the next. Only tasks of that loop touch its line.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import count
from typing import TypeAlias

from shapekit.alarm import AsyncAlarm

Place: TypeAlias = tuple[int, int, int]
"""When it is due, its turn among those who are due with it, and a number that no other place has."""

_numbers = count()


class Line:
    """Places by their order, each with the alarm that its sleeper waits for."""

    __slots__ = ("_alarms", "_latest_us", "_places")

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._alarms: dict[Place, AsyncAlarm] = {}
        self._latest_us = 0

    def join(self, due_us: int, turn: int) -> Place:
        """Stand in line."""
        place = (due_us, turn, next(_numbers))
        insort(self._places, place)
        return place

    def lie_down(self, place: Place, alarm: AsyncAlarm) -> None:
        """Say what wakes whoever stands at this place."""
        self._alarms[place] = alarm

    def is_first(self, place: Place) -> bool:
        """Whether nobody goes before."""
        return self._places[0] is place

    def leave(self, place: Place) -> None:
        """Go, or give up."""
        del self._places[bisect_left(self._places, place)]
        self._alarms.pop(place, None)

    def call_first(self, now_us: int) -> None:
        """Wake whoever goes first, if that one is due, or was before the clock went back."""
        if now_us > self._latest_us:
            self._latest_us = now_us
        if self._places and self._places[0][0] <= self._latest_us:
            alarm = self._alarms.get(self._places[0])
            if alarm is not None:
                alarm.set()

    def __len__(self) -> int:
        return len(self._places)
