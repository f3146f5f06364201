"""Shapers with several limits, each with the laws that its departures have to obey."""

from functools import partial

from shapekit import GCRA, FixedWindow, LeakyBucket, Quota, SlidingWindow, SlidingWindowLog

from .follower import SECOND
from .histories import check_periods, check_spacing, check_windows


def window(limit, seconds):
    return partial(check_windows, limit=limit, window=seconds * SECOND)


def pace(limit, seconds, burst):
    return partial(check_spacing, limit=limit, period=round(seconds * SECOND), burst=burst)


def periods(limit, seconds):
    return partial(check_periods, limit=limit, period=seconds * SECOND)


ALWAYS = {
    "two rates": (("4/s; 9 per 4 s",), {}, [pace(4, 1, 1), window(9, 4)]),
    "three rates": (("5/s burst 3; 8 per 2 s; 20/min",), {}, [pace(5, 1, 3), window(8, 2), window(20, 60)]),
    "two rates of one period": (
        ("10/s; 100/min; 20/min burst 4",),
        {},
        [pace(10, 1, 1), window(100, 60), pace(20, 60, 4)],
    ),
    "a bursting second rate": (("4/s; 2/s burst 5",), {}, [pace(4, 1, 1), pace(2, 1, 5)]),
    "pace=burst": (("5/s",), {"pace": "burst"}, [window(5, 1)]),
    "pace=burst, two rates": (("5/s; 12 per 5 s",), {"pace": "burst"}, [window(5, 1), window(12, 5)]),
    "GCRA": (("10/s",), {"burst": 2, "gates": (GCRA("3/s", burst=4),)}, [pace(10, 1, 2), pace(3, 1, 4)]),
    "odd GCRA": (("7/s",), {"gates": (GCRA("3 per 1.1 s", burst=4),)}, [pace(7, 1, 1), pace(3, 1.1, 4)]),
    "GCRA without a rate": ((), {"gates": (GCRA("3/s", burst=4),)}, [pace(3, 1, 4)]),
    "leaky bucket": (("9/s",), {"gates": (LeakyBucket("3/s", capacity=4),)}, [pace(3, 1, 4)]),
    "log": (("10/s",), {"burst": 4, "gates": (SlidingWindowLog(6, 2),)}, [pace(10, 1, 4), window(6, 2)]),
    "conservative ring": (
        ("10/s",),
        {"gates": (SlidingWindow(6, 2, buckets=4, conservative=True),)},
        [pace(10, 1, 1), window(6, 2)],
    ),
    "rolling quota": (("10/s",), {"gates": (Quota("7/rolling:5s"),)}, [window(7, 5)]),
    "many gates": (
        ("10/s; 14 per 3 s",),
        {"gates": (GCRA("4/s", burst=5), SlidingWindowLog(8, 2))},
        [pace(10, 1, 1), window(14, 3), pace(4, 1, 5), window(8, 2)],
    ),
}
"""Limits whose windows have no fixed beginning: they hold in real time across holds too."""

ALIGNED = {
    "fixed window": (("10/s",), {"gates": (FixedWindow(4, 1),)}, [pace(10, 1, 1), periods(4, 1)]),
    "fixed quota": (("10/s",), {"gates": (Quota("7/fixed:3s"),)}, [pace(10, 1, 1), periods(7, 3)]),
    "two quotas": (
        ("10/s; 9 per 2 s",),
        {"gates": (Quota("7/fixed:3s"), Quota("20/fixed:12s"))},
        [window(9, 2), periods(7, 3), periods(20, 12)],
    ),
    "quota and window": (
        (),
        {"gates": (Quota("7/fixed:3s"), FixedWindow(4, 1), GCRA("5/s", burst=4))},
        [periods(7, 3), periods(4, 1), pace(5, 1, 4)],
    ),
}
"""Limits of the calendar or of the epoch: without holds."""
