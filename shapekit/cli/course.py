"""Course: when each of many calls leaves, as the shaper itself says."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

from shapekit.cli.complaint import Complaint
from shapekit.cli.words import span_words
from shapekit.levers import MAX_PLAYED
from shapekit.policy import Policy
from shapekit.rate import MAX_SPAN_US, SECOND_US

__all__ = ["Course", "Days"]

_LONGEST_S = MAX_SPAN_US / SECOND_US


class Days(NamedTuple):
    """Neighbouring days, and how many calls leave on them."""

    first: date
    last: date
    calls: int


class Course:
    """The departures of `calls` calls that all ask at `start_us`, and of nobody else.

    Without windows, gates and quotas the shaper foretells any one of them at once. With them it is asked
    for one turn after the other.
    """

    def __init__(self, policy: Policy, calls: int, cost: int, start_us: int, *, show: bool = False) -> None:
        self.calls = calls
        self._shaper = policy.shaper
        self._cost = cost
        self._start_us = start_us
        if self._shaper.queue.constraints:
            self._played: list[int] | None = self._play(show)
        else:
            self._played = None
            self._bounded(calls, self._shaper.forecast(calls, cost=cost).last_in)

    def leaves_us(self, number: int) -> int:
        """When the `number`-th call leaves, counted from the first one on."""
        if self._played is not None:
            return self._played[number - 1]
        last_in = self._shaper.forecast(number, cost=self._cost).last_in
        return self._start_us + round(last_in * SECOND_US)

    def gone_by(self, instant_us: int) -> int:
        """How many have left by then."""
        return bisect_right(range(1, self.calls + 1), instant_us, key=self.leaves_us)

    def days(self, zone: tzinfo) -> Iterator[Days]:
        """The days on which calls leave; those that follow each other are one entry."""
        gone, run = 0, None
        while gone < self.calls:
            day = datetime.fromtimestamp(self.leaves_us(gone + 1) // SECOND_US, zone).date()
            by_midnight = self.gone_by(_midnight_us(day + timedelta(days=1), zone) - 1)
            if run is not None and day == run.last + timedelta(days=1):
                run = Days(run.first, day, run.calls + by_midnight - gone)
            else:
                if run is not None:
                    yield run
                run = Days(day, day, by_midnight - gone)
            gone = by_midnight
        if run is not None:
            yield run

    def _play(self, show: bool) -> list[int]:
        if self.calls > MAX_PLAYED:
            raise Complaint(
                f"calls={self.calls} is more than {MAX_PLAYED} and each is played under several limits; "
                "plan fewer calls, or one rate alone"
            )
        numbers: Iterable[int] = range(1, self.calls + 1)
        if show:
            numbers = track(numbers, "playing", transient=True, console=Console(stderr=True))
        played = []
        for number in numbers:
            turn = self._shaper.reserve(cost=self._cost, max_wait=_LONGEST_S)
            self._bounded(number, turn.delay)
            played.append(turn.grant.departs_at_us)
        return played

    def _bounded(self, number: int, delay_s: float) -> None:
        if delay_s > _LONGEST_S:
            bound = span_words(MAX_SPAN_US)
            raise Complaint(f"call {number} leaves more than {bound} after the start; plan fewer calls")


def _midnight_us(day: date, zone: tzinfo) -> int:
    return int(datetime.combine(day, time(), zone).timestamp()) * SECOND_US
