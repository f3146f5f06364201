"""TokenBucket: GCRA told in tokens."""

from __future__ import annotations

from typing import ClassVar

from shapekit.algorithms.gcra import Meter
from shapekit.rate import RateLike

__all__ = ["TokenBucket"]


class TokenBucket(Meter):
    """A bucket of `capacity` tokens, full at first, refilled at `rate`; a call takes `cost` of them.

    Refilling is lazy and exact. `remaining` counts the whole tokens in the bucket, `current` those
    missing, `reset_at` is when it is full. Worst burst: `capacity` at once, and `capacity + L/T` in
    any span of length L.

        >>> bucket = TokenBucket("10/s", capacity=5)
        >>> bucket.check(None, 0, 3).decision.remaining
        2

    It decides as `GCRA(rate, burst=capacity)` does, in every field; take the one whose words you use.
    """

    __slots__ = ()
    kind: ClassVar[str] = "token_bucket"
    limit_name: ClassVar[str] = "capacity"

    def __init__(self, rate: RateLike, capacity: int | None = None) -> None:
        super().__init__(rate, capacity)

    @property
    def capacity(self) -> int:
        """The tokens of a full bucket."""
        return self.burst
