"""AIMD: how a rate is lowered where a server refuses, and raised where it does not.

Rates are shares of the highest one (see Tempo). A refusal lowers the rate a little, says where the
ceiling is, and is the first of an incident: what else is refused of the calls that left before the
lowering took effect belongs to it, and so does what is refused before anything has succeeded since.
Incidents that follow soon upon each other lower by more each.

Then the rate grows with `progress`: the time that was spent succeeding, of which a call that had to wait
for its slot is worth 0.2 s, so that slow rates grow by calls and fast ones by time. It comes back to the
ceiling on a curve that is steep first and flat there, bends up beyond it, and if the ceiling is not met
again, climbs ever faster. Until there is a ceiling at all, it doubles within some two seconds.

Tempo: a clock that runs at a share of the speed of real time, and that a hold stops.

Its time is `v(t) = virtual + floor((t - anchor) * share / FULL)`, and before `anchor` it stands at
`virtual`. So a hold is an anchor that lies ahead, and another speed begins with another anchor: at the
instant of the change, where the clock stood then. Time that goes back does not turn it back below that.

`real` is the inverse, from below: the first instant at which the clock shows a time or has passed it.

>>> HALF = (1_000, 5_000, FULL // 2)
>>> shown(*HALF, 1_400), real(*HALF, 5_200), shown(*HALF, 900), real(*HALF, 4_000)
(5200, 1400, 5000, 1000)
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TypeAlias

from shapekit._runtime.value import Value
from shapekit.errors import ConfigError
from shapekit.rate import Rate, RateLike

__all__ = ["Adaptive"]

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


Law: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""share; ceiling (0: none is known) and the share it was lowered to; progress in µs; since when calls must
have left to say something new; when success was last told; how many incidents in a row; the cap that the
server states, and when the call left that was told."""

KEPT = (256, 236, 218, 192)
"""What is kept of a rate, in 1/256, by how many incidents there were in a row: all, 92 %, 85 %, 75 %."""
IN_A_ROW = len(KEPT) - 1
"""More of them are not told apart."""
NEARER = 246
"""What is kept of a ceiling, in 1/256, that was met before the last one was reached again: 96 %."""
SOON_US = 6_000_000
"""An incident after less progress than this is in a row with the last one."""
WORTH_US = 200_000
"""The progress of one success."""
STRIDE_US = 2_000_000
"""The most progress that is made at once."""
GRACE_US = 50_000
"""How long it takes until all who are about to leave have heard of a change."""
PLATEAU_US = 20_000_000
"""The progress after which the ceiling is reached again."""
STEPS = 128
"""In how many steps the curve reaches it."""
BEYOND = 20
"""How far above it the curve has come after as much progress again, in 1/256: 8 %."""
CLIMB_US = 30_000_000
"""From there on, and until there is a ceiling, the rate grows by `progress / this` of itself."""
START_US = 3_000_000


def cold(least: int) -> Law:
    """Nothing is known."""
    return (least, 0, 0, 0, 0, 0, 0, FULL, 0)


def inspect(law: Any) -> None:
    """Refuse a law that was read and that none of these has made."""
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
    """The share that the rate has now."""
    return min(law[0], law[7])


def refused(law: Law, now: int, left: int, until: int, least: int) -> Law:
    """A call that left at `left` was refused; nobody leaves before `until`."""
    share, ceiling, low, progress, since, told, streak, cap, cap_at = law
    if left < since or (ceiling and not progress):
        return share, ceiling, low, progress, max(since, until), told, streak, cap, cap_at
    met = min(share, cap)
    if not ceiling:
        streak = IN_A_ROW  # it doubles within seconds, and is well beyond by the time of a refusal
    elif progress < SOON_US:
        streak = min(streak + 1, IN_A_ROW)
    else:
        streak = 1
    lowered = max(least, met * KEPT[streak] // KEPT[0])
    if ceiling and progress < PLATEAU_US:
        # Below what was taken for the ceiling: it is lower still than where we met it.
        met = met * NEARER // KEPT[0]
    return lowered, max(lowered, met), lowered, 0, max(until, now + GRACE_US), now, streak, cap, cap_at


def succeeded(law: Law, now: int, count: int, left: int) -> Law:
    """So many calls succeeded that had to wait, and perhaps some that had not; the first left at `left`."""
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
    """The answer to a call that left at `left` says how much the server bears at most."""
    if left < law[8]:
        return law
    return (*law[:7], cap, left)


class Adaptive(Value):
    """The lowest rate and the highest: a shaper begins at `min` and finds what lies between.

        >>> from shapekit import Adaptive, Shaper
        >>> shaper = Shaper(adaptive=Adaptive(min="1/s", max="50/s"))
        >>> round(shaper.adaptive.rate(), 6)
        1.0

    It is never faster than `max`, and slower than `min` only where the server itself states less.
    """

    __slots__ = fields = ("min", "max")

    min: Rate
    """Where the search begins, and the lowest rate it takes by itself."""
    max: Rate
    """The rate that is never exceeded."""

    def __init__(self, min: RateLike, max: RateLike) -> None:  # noqa: A002 - as users call them
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
        raise ConfigError(field, str(parsed), "has a burst", "say burst= beside adaptive=")
    return parsed
