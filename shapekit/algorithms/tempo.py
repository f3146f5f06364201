"""Tempo: a clock that runs at a share of the speed of real time, and that a hold stops.

Its time is `v(t) = virtual + floor((t - anchor) * share / FULL)`, and before `anchor` it stands at
`virtual`. So a hold is an anchor that lies ahead, and another speed begins with another anchor: at the
instant of the change, where the clock stood then. Time that goes back does not turn it back below that.

`real` is the inverse, from below: the first instant at which the clock shows a time or has passed it.

>>> HALF = (1_000, 5_000, FULL // 2)
>>> shown(*HALF, 1_400), real(*HALF, 5_200), shown(*HALF, 900), real(*HALF, 4_000)
(5200, 1400, 5000, 1000)
"""

from __future__ import annotations

FULL = 2**30
"""The share of a clock that runs as fast as real time."""
LEAST = 2**10
"""The smallest share there is: about a millionth."""
END_US = 2**52
"""The last instant: what comes later comes then, so that doubles hold it."""


def shown(anchor: int, virtual: int, share: int, now: int) -> int:
    """What the clock shows at a real instant."""
    return virtual + (now - anchor) * share // FULL if now > anchor else virtual


def real(anchor: int, virtual: int, share: int, time: int) -> int:
    """The first real instant, not before the anchor, at which the clock shows `time` or more."""
    if time <= virtual:
        return anchor
    return min(END_US, anchor - (virtual - time) * FULL // share)
