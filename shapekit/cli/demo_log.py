"""The log of the demo's API, and what it says: the only source of the demo's numbers.

Times are those of the host's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

ASKED_AT = "X-Asked-At"
"""The header in which a worker says since when it has wanted this call."""
WORKER = "X-Worker"
SECOND_NS = 1_000_000_000
COLUMN_NS = SECOND_NS // 10


class Call(NamedTuple):
    """A call that arrived at the API."""

    arrived_ns: int
    asked_ns: int
    """Since when its worker has wanted it: an accepted retry has waited since its first attempt."""
    accepted: bool
    worker: int

    def line(self) -> str:
        """As it stands in the log."""
        return f"{self.arrived_ns} {self.asked_ns} {self.accepted:d} {self.worker}\n"

    @classmethod
    def parse(cls, line: str) -> Self:
        """A line of the log."""
        arrived, asked, accepted, worker = map(int, line.split())
        return cls(arrived, asked, bool(accepted), worker)


class Summary(NamedTuple):
    """What the log says of one run."""

    calls: int
    accepted: int
    refused: int
    rate: float
    """Accepted calls a second."""
    worst_second: int
    """The most calls that arrived in any one second."""
    wait_mean: float
    """Seconds from wanting a call until it arrived and was accepted."""
    wait_p50: float
    wait_p99: float


class Log:
    """The calls of one run, in the order in which they arrived."""

    def __init__(self, calls: Sequence[Call], began_ns: int, lasted_ns: int) -> None:
        self.calls = calls
        self.began_ns = began_ns
        self.lasted_ns = lasted_ns
        """So far."""

    def columns(self, count: int) -> list[tuple[int, int]]:
        """How many were accepted and refused in each of the first tenths of a second."""
        accepted, refused = [0] * count, [0] * count
        for call in self.calls:
            place = (call.arrived_ns - self.began_ns) // COLUMN_NS
            if 0 <= place < count:
                (accepted if call.accepted else refused)[place] += 1
        return list(zip(accepted, refused, strict=True))

    def summary(self) -> Summary:
        """The figures so far."""
        good = [call for call in self.calls if call.accepted]
        waits = sorted(call.arrived_ns - call.asked_ns for call in good)
        return Summary(
            len(self.calls),
            len(good),
            len(self.calls) - len(good),
            len(good) * SECOND_NS / max(self.lasted_ns, 1),
            self._worst_second(),
            sum(waits) / len(waits) / SECOND_NS if waits else 0.0,
            _quantile(waits, 0.5),
            _quantile(waits, 0.99),
        )

    def _worst_second(self) -> int:
        arrivals = [call.arrived_ns for call in self.calls]
        worst = first = 0
        for place, arrived in enumerate(arrivals):
            while arrivals[first] <= arrived - SECOND_NS:
                first += 1
            worst = max(worst, place - first + 1)
        return worst


def _quantile(ordered: Sequence[int], part: float) -> float:
    """The least value that at least this part of all does not exceed, in seconds."""
    return ordered[math.ceil(part * len(ordered)) - 1] / SECOND_NS if ordered else 0.0
