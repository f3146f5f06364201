"""LeakyBucket: the meter that calls pour into."""

from __future__ import annotations

from typing import ClassVar

from shapekit.algorithms.gcra import Meter
from shapekit.rate import RateLike

__all__ = ["LeakyBucket"]


class LeakyBucket(Meter):
    """A bucket that leaks at `rate`; a call that would make it overflow `capacity` is rejected.

    `current` is the level, rounded up to whole units: what a call still has to drain. Worst burst:
    `capacity` into an empty bucket. This is the leaky bucket as a meter, which rejects; the leaky
    bucket as a queue, which delays, is `Shaper`, and runs on the same grid.

        >>> bucket = LeakyBucket("10/s", capacity=2)
        >>> full = bucket.check(bucket.check(None, 0, 1).state, 0, 1)
        >>> full.decision.current, bucket.check(full.state, 50_000, 1).decision.retry_after
        (2, 0.05)
    """

    __slots__ = ()
    kind: ClassVar[str] = "leaky_bucket"
    limit_name: ClassVar[str] = "capacity"

    def __init__(self, rate: RateLike, capacity: int | None = None) -> None:
        super().__init__(rate, capacity)

    @property
    def capacity(self) -> int:
        """The level above which nothing more fits."""
        return self.burst
