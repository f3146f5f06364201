"""The law of departures, as they happen: what a judge of recorded ones holds them to."""

from shapekit.rate import Rate
from shapekit.testing import check_window

GRACE_US = 10_000
"""What leaves so shortly before a window's end may be too many there: no timer is better than that."""


def check_departures(departures, *rates):
    """PaceError if, in any window of a rate, more than its limit and one more have left before the grace.

    A window is as long as the rate's period, and half-open; whether the calls in its last 10 ms are left out,
    or the window ends there, is the same.
    """
    for rate in map(Rate.parse, rates):
        check_window(departures, rate.limit + (rate.burst or 1), f"{rate.period_us - GRACE_US}us")
