"""What callers get back: a Decision about now, a Forecast about later.

All fields are integers, so that two implementations of one algorithm can be compared field by field.
Instants are epoch microseconds on the clock of the store that decided.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

__all__ = ["Decision", "Forecast"]

Receipt: TypeAlias = "int | tuple[Receipt | None, ...] | None"
"""What a charge left behind: its name, for `refund` and `debit`. In a composite one for each part."""


class Decision(NamedTuple):
    """The answer to one check; true if the call may leave now.

    New fields are only ever added at the end, with a default.
    """

    allowed: bool
    """Whether the call is admitted; the truth value of the decision."""
    limit: int
    """The ceiling that was decided on: a burst, or a window's limit."""
    current: int
    """Units in use. After an admission they include this call."""
    remaining: int
    """Whole units that would still be admitted now; never negative."""
    reset_at_us: int
    """When everything would be free again, if nobody called until then."""
    retry_after_us: int
    """0 if admitted; otherwise the exact time after which the same call is admitted."""
    binding: str | None = None
    """In a composite: the name of the part that decided."""
    receipt: Receipt = None
    """What the charge left behind, for `refund`; None if nothing was charged."""
    delay_us: int = 0
    """How far ahead the slot lies that a shaper took; 0 for what a gate decides."""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def retry_after(self) -> float:
        """`retry_after_us` in seconds."""
        return self.retry_after_us / 1_000_000

    @property
    def delay(self) -> float:
        """`delay_us` in seconds."""
        return self.delay_us / 1_000_000

    @property
    def reset_at(self) -> float:
        """`reset_at_us` in epoch seconds."""
        return self.reset_at_us / 1_000_000


class Forecast(NamedTuple):
    """What would happen to calls of one cost if nobody else called."""

    admits_at_us: int
    """The earliest instant at which one such call is admitted."""
    fits_now: int
    """How many such calls would be admitted now, one after another."""
    full_at_us: int
    """When everything is free again."""

    @property
    def admits_at(self) -> float:
        """`admits_at_us` in epoch seconds."""
        return self.admits_at_us / 1_000_000

    @property
    def full_at(self) -> float:
        """`full_at_us` in epoch seconds."""
        return self.full_at_us / 1_000_000
