"""The law of departures as they happen, and the check of recorded departures against it."""

from shapekit.rate import Rate
from shapekit.testing import check_window

from ..witness import NEAR_S, Stalls

GRACE_US = 10_000
"""What leaves so shortly before a window's end may be too many there: no timer is better than that."""


NOTHING_SEEN = Stalls(())


def check_departures(departures, *rates, stalls=NOTHING_SEEN):
    """PaceError if, in any window of a rate, more than its limit and one more have left before the grace.

    A window is as long as the rate's period, and half-open; whether the calls in its last 10 ms are left out,
    or the window ends there, is the same. A call that was let go, and then not let run before it had left,
    makes the window that begins with it look shorter than it is: by no more than what was seen there.
    """
    left = sorted(departures)
    for rate in map(Rate.parse, rates):
        most = rate.limit + (rate.burst or 1)
        for number, at in enumerate(left):
            earliest = at - stalls.longest(at - NEAR_S, at)
            check_window(
                [earliest, *left[number + 1 : number + most + 1]], most, f"{rate.period_us - GRACE_US}us"
            )
