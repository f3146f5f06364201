"""Adaptive: between which rates a shaper finds the one that the server bears."""

from __future__ import annotations

from fractions import Fraction

from shapekit._runtime.value import Value
from shapekit.algorithms.adaptive.aimd import FULL, LEAST
from shapekit.errors import ConfigError
from shapekit.rate import Rate, RateLike

__all__ = ["Adaptive"]


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
