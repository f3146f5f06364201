"""How a crowd leaves at a rate: its slots exactly, its instants but for the stalls of the machine."""

from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

from shapekit.rate import SECOND_US


class Departure(NamedTuple):
    """One call that has left."""

    at: float
    """When, on this machine's monotonic clock, in seconds."""
    late: float
    """How long after its slot, in seconds, by the clock that decides."""
    slot: int
    """When it was to leave, in microseconds."""
    waited: bool
    """Whether it had to wait; if not, the queue was empty."""


class Pace:
    """Departures at a rate, and what they would have been had the machine stalled no process."""

    def __init__(self, departures, rate, stalls):
        departures = sorted(departures, key=lambda departure: departure.slot)
        self.earliest = min(departure.late for departure in departures)
        gaps = [later.slot - earlier.slot - SECOND_US // rate for earlier, later in pairwise(departures)]
        self.gaps = [gap for gap, later in zip(gaps, departures[1:], strict=True) if later.waited]
        """By how much each waiting call has a later slot than the one right after the slot before it."""
        self.idle = sum(gaps) / SECOND_US
        """For how many seconds altogether no call was waiting."""
        planned = [departure.at - departure.late for departure in departures]
        left = [stalls.undone(at, departure.at) for at, departure in zip(planned, departures, strict=True)]
        late = sorted(at - due for at, due in zip(left, planned, strict=True))
        self.median = late[len(late) // 2]
        self.latest = late[-1]
        self._left = sorted(left)
        span = self._left[-1] - self._left[0]
        self.rate = (len(left) - 1) / (span - self.idle)
        """While a call was waiting."""
        self.stalled = stalls.within(min(planned), max(departure.at for departure in departures))

    @property
    def is_unbroken(self):
        """Whether each waiting call has the slot after the one before; or a later one, for as long as the
        machine has stalled a process, whose late call moves the queue.
        """
        return min(self.gaps) >= 0 and sum(self.gaps) <= self.stalled * SECOND_US

    @property
    def most_in_a_second(self):
        return max(bisect_left(self._left, at + 1) - index for index, at in enumerate(self._left))

    def __repr__(self):
        return (
            f"{len(self._left)} left, {self.rate:.2f}/s, {self.most_in_a_second} in a second; ms late: least "
            f"{self.earliest * 1e3:.3f}, median {self.median * 1e3:.3f}, most {self.latest * 1e3:.1f}; "
            f"no call waiting for {self.idle:.3f} s, stalled for {self.stalled:.3f} s"
        )
