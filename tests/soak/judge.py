"""Whether the figures of a long run stay as they are, or grow."""

from itertools import pairwise
from math import sqrt
from statistics import median_low
from typing import NamedTuple

MOST_GROWTH = 0.02
UNDER_WAY = 3
"""By how much a small count may differ at any moment without growing."""
CHANCE = 3
"""By how many times its root a number of keys or objects that come and go differs by chance."""

LEFT = 0.01
"""The share of the calls that would have to leave something behind."""


class Trend(NamedTuple):
    """A figure in the first third of a warm run, and in the last."""

    what: str
    first: float
    last: float
    chance: float = 0.0
    """By how much it may be more for other reasons than growth."""

    @property
    def growth(self):
        """Relative to the first figure."""
        return (self.last - self.first) / self.first if self.first else 0.0

    @property
    def grows(self):
        return self.last - self.first > max(MOST_GROWTH * self.first, self.chance)

    def __str__(self):
        return f"{self.what}: {self.first:g} -> {self.last:g} ({self.growth:+.2%})"


def ends(samples):
    """The first third, and the last."""
    third = max(1, len(samples) // 3)
    return samples[:third], samples[-third:]


def trend(what, samples):
    """Of a thing that was sampled: the middle of the first third and that of the last."""
    first, last = (median_low([sample[what] for sample in part]) for part in ends(samples))
    return Trend(what, first, last, UNDER_WAY if isinstance(first, int) else 0.0)


def population(what, samples, speed, calls):
    """The trend of things that come with calls and live for a while: at another speed there are others.

    A busy machine is not always as quick, so they grow if they do by more than a part of the calls made.
    """
    first, last = (median_low([sample[what] for sample in part]) for part in ends(samples))
    return Trend(
        f"{what} at one speed", first, round(last / speed, 1), max(CHANCE * sqrt(first), LEFT * calls)
    )


def made(samples, kinds):
    """How many calls were made meanwhile."""
    return sum(samples[-1]["done"][kind] - samples[0]["done"][kind] for kind in kinds)


def speed(samples, kinds):
    """How many times as much was done in the last third as in the first, in the same time.

    By the middle of what was done between two samples, as the populations are judged by theirs: a machine
    that is slow for a part of a third has another mean.
    """
    first, last = (
        median_low(
            sum(end["done"][kind] - begin["done"][kind] for kind in kinds) / (end["at"] - begin["at"])
            for begin, end in pairwise(part)
        )
        for part in ends(samples)
    )
    return last / first
