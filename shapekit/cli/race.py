"""Race: the same arrivals through several strategies, and the columns of time they are drawn in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shapekit.cli.arrivals import Arrivals
from shapekit.cli.contender import Contender, Run
from shapekit.rate import SECOND_US

__all__ = ["Columns", "Race"]

_DAY_S = 86_400
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, _DAY_S)


class Columns(NamedTuple):
    """Equal pieces of time, as wide as people count."""

    width_us: int
    number: int

    @classmethod
    def over(cls, length_us: int, most: int) -> Columns:
        """At most `most` columns that hold `length_us`."""
        width = next(width for width in _widths() if width * most >= length_us)
        return cls(width, max(1, -(-length_us // width)))

    def counts(self, instants_us: Iterable[int], start_us: int) -> list[int]:
        """How many instants fall into each."""
        counts = [0] * self.number
        for at in instants_us:
            counts[(at - start_us) // self.width_us] += 1
        return counts


class Race(NamedTuple):
    """How each contender fared; the first is nobody, who lets every call leave."""

    arrivals: Arrivals
    runs: list[Run]
    windows_us: list[int]
    """What the limits are told in: how many leave in any such window is compared."""

    @classmethod
    def run(cls, arrivals: Arrivals, contenders: Sequence[Contender], max_wait_us: int | None) -> Race:
        """Let every contender meet the same arrivals."""
        runs = [entry.run(arrivals.instants_us, max_wait_us) for entry in (Contender.unshaped(), *contenders)]
        periods = {period for contender in contenders for period in contender.periods_us}
        return cls(arrivals, runs, sorted(periods) or [SECOND_US])

    @property
    def length_us(self) -> int:
        """From the first instant until every call has come and every one that was let has left."""
        last = max((run.departures_us[-1] for run in self.runs if run.departures_us), default=0)
        return max(self.arrivals.length_us, last - self.arrivals.start_us + 1)

    def counts(self, run: Run, columns: Columns) -> list[int]:
        """How many of a run left in each column."""
        return columns.counts(run.departures_us, self.arrivals.start_us)


def _widths() -> Iterator[int]:
    size = 1
    while size < SECOND_US:
        yield from (size, 2 * size, 5 * size)
        size *= 10
    yield from (seconds * SECOND_US for seconds in _STEPS_S)
    days = 2
    while True:
        yield days * _DAY_S * SECOND_US
        days *= 2
