"""AIMD: lowers a rate when the server refuses, and raises it when calls succeed.

Rates are shares of the highest one (see Tempo). A refusal lowers the rate a little, marks the ceiling, and
starts an incident: refusals of calls that left before the lower rate took effect belong to the same incident,
and so do all refusals before the next success. Incidents in quick succession lower the rate by more each
time.

After that, the rate grows with `progress`: time spent succeeding. A call that had to wait for its slot is
worth 0.2 s of it, so that slow rates grow per call and fast ones over time. The rate returns to the ceiling
on a curve that is steep at first and flat there, bends up beyond it and, if it meets no ceiling again, climbs
ever faster. Until there is a ceiling, it doubles about every two seconds.

Tempo: a clock that runs at a share of the speed of real time, and that a hold stops.

Its time is `v(t) = virtual + floor((t - anchor) * share / FULL)`, and before `anchor` it stays at `virtual`.
So a hold is an anchor in the future, and a new speed starts with a new anchor: at the instant of the change,
with the time that the clock showed then. If real time goes back, the clock does not go below that.

`real` is the inverse, rounded up: the first instant at which the clock shows a time or has passed it.

>>> HALF = (1_000, 5_000, FULL // 2)
>>> shown(*HALF, 1_400), real(*HALF, 5_200), shown(*HALF, 900), real(*HALF, 4_000)
(5200, 1400, 5000, 1000)
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TypeAlias

from shapekit.algorithms.base import END_US
from shapekit.errors import ConfigError
from shapekit.rate import Rate, RateLike, Value

__all__ = ["Adaptive"]

FULL = 2**30
"""The share of a clock that runs as fast as real time."""
LEAST = 2**10
"""The smallest share: about a millionth."""


def shown(anchor: int, virtual: int, share: int, now: int) -> int:
    """What the clock shows at a real instant."""
    return virtual + (now - anchor) * share // FULL if now > anchor else virtual


def real(anchor: int, virtual: int, share: int, time: int) -> int:
    """The first real instant, not before the anchor, at which the clock shows `time` or more."""
    if time <= virtual:
        return anchor
    at = anchor - (virtual - time) * FULL // share
    return at if at < END_US else END_US


Law: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""share; ceiling (0 if unknown) and the share it was lowered to; progress in µs; when calls must have left to
count as new; when success was last reported; how many incidents in a row; the cap that the server states, and
when the call left whose answer stated it.
"""

KEPT = (256, 236, 218, 192)
"""What is kept of a rate, in 1/256, by the number of incidents in a row: all, 92 %, 85 %, 75 %."""
IN_A_ROW = len(KEPT) - 1
"""The highest number of incidents that is counted."""
NEARER = 246
"""What is kept of a ceiling, in 1/256, if it was met before the last one was reached again: 96 %."""
SOON_US = 6_000_000
"""An incident after less progress than this counts as in a row with the last one."""
WORTH_US = 200_000
"""The progress of one success."""
STRIDE_US = 2_000_000
"""The most progress per report."""
GRACE_US = 50_000
"""How long it takes until every call that is about to leave knows of a change."""
PLATEAU_US = 20_000_000
"""The progress after which the ceiling is reached again."""
STEPS = 128
"""The number of steps of the curve up to there."""
BEYOND = 20
"""How far beyond the ceiling the curve is after as much progress again, in 1/256: 8 %."""
CLIMB_US = 30_000_000
"""After that, and while there is no ceiling, the rate grows by `progress / this` of itself."""
START_US = 3_000_000


def cold(least: int) -> Law:
    """The law of a cold key."""
    return (least, 0, 0, 0, 0, 0, 0, FULL, 0)


def inspect(law: Any) -> None:
    """Refuse a law that was read and that these functions cannot have made."""
    share, ceiling, low, progress, since, told, streak, cap, cap_at = law
    sum((since, told, cap_at))
    is_sound = (
        LEAST <= min(share, cap) <= max(share, cap, ceiling, low) <= FULL
        and min(ceiling, low, progress, streak) >= 0
        and progress <= 4 * PLATEAU_US
        and streak <= IN_A_ROW
    )
    if not is_sound:
        raise ValueError("this is no law")


def present(law: Law) -> int:
    """The current share."""
    share, cap = law[0], law[7]
    return share if share < cap else cap


def refused(law: Law, now: int, left: int, until: int, least: int) -> Law:
    """The law after a call that left at `left` was refused; no call leaves before `until`."""
    share, ceiling, low, progress, since, told, streak, cap, cap_at = law
    if left < since or (ceiling and not progress):
        return share, ceiling, low, progress, max(since, until), told, streak, cap, cap_at
    met = min(share, cap)
    if not ceiling:
        streak = IN_A_ROW  # it doubles within seconds, and is far beyond the ceiling by the time of a refusal
    elif progress < SOON_US:
        streak = min(streak + 1, IN_A_ROW)
    else:
        streak = 1
    lowered = max(least, met * KEPT[streak] // KEPT[0])
    if ceiling and progress < PLATEAU_US:
        # Below the assumed ceiling: the real one is even lower than where it was met.
        met = met * NEARER // KEPT[0]
    return lowered, max(lowered, met), lowered, 0, max(until, now + GRACE_US), now, streak, cap, cap_at


def succeeded(law: Law, now: int, count: int, left: int) -> Law:
    """The law after successes: `count` calls had to wait, others may not have; the first left at `left`."""
    share, ceiling, low, progress, since, told, streak, cap, cap_at = law
    if left < since:
        return law
    gain = max(0, min(now - told, count * WORTH_US, STRIDE_US))
    told = max(told, now)
    progress = max(1, min(progress + gain, 4 * PLATEAU_US))
    if not ceiling:
        grown = share + share * gain // START_US
    elif progress < PLATEAU_US:
        left_over = (PLATEAU_US - progress) * STEPS // PLATEAU_US
        grown = ceiling - (ceiling - low) * left_over**3 // STEPS**3
    elif progress < 2 * PLATEAU_US:
        beyond = (progress - PLATEAU_US) * STEPS // PLATEAU_US
        grown = ceiling + ceiling * BEYOND // KEPT[0] * beyond**3 // STEPS**3
    else:
        grown = share + share * gain // CLIMB_US
    share = max(share, min(grown, cap))
    return share, ceiling, low, progress, since, told, streak, cap, cap_at


def stated(law: Law, cap: int, left: int) -> Law:
    """The law after the answer to a call that left at `left` has stated the most that the server allows."""
    if left < law[8]:
        return law
    return (*law[:7], cap, left)


class Adaptive(Value):
    """The bounds of an adaptive rate: a shaper starts at `min` and finds the rate in between.

        >>> from shapekit import Adaptive, Shaper
        >>> shaper = Shaper(adaptive=Adaptive(min="1/s", max="50/s"))
        >>> round(shaper.adaptive.rate(), 6)
        1.0

    The rate never exceeds `max`, and falls below `min` only if the server itself states less.
    """

    __slots__ = fields = ("min", "max")

    min: Rate
    """The rate at the start, and the lowest that it finds by itself."""
    max: Rate
    """The rate that is never exceeded."""

    def __init__(self, min: RateLike, max: RateLike) -> None:  # noqa: A002 - the names that users write
        lowest, highest = _bound("min", min), _bound("max", max)
        if share_of(lowest, highest) >= 1:
            raise ConfigError("min", str(lowest), f"is not below max={str(highest)!r}", "leave room between")
        if share_of(lowest, highest) * (FULL // LEAST) < 1:
            raise ConfigError(
                "min", str(lowest), f"is less than a millionth of max={str(highest)!r}", "raise it"
            )
        self._fill(min=lowest, max=highest)

    def __repr__(self) -> str:
        return f"Adaptive(min={str(self.min)!r}, max={str(self.max)!r})"


def share_of(rate: Rate, highest: Rate) -> Fraction:
    """A rate as a part of the highest one."""
    return Fraction(rate.limit * highest.period_us, rate.period_us * highest.limit)


def _bound(field: str, rate: RateLike) -> Rate:
    parsed = Rate.parse(rate, field)
    if parsed.burst is not None:
        raise ConfigError(field, str(parsed), "has a burst", "pass burst= beside adaptive=")
    return parsed
