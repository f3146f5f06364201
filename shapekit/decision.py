"""Decision and Forecast: an algorithm's answers about a call now, and about later calls.

Quantities are integers, so that the Python and Lua forms of an algorithm can be compared field by field.
Instants are epoch microseconds on the clock of the store that decided.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

__all__ = ["Decision", "Forecast"]

Receipt: TypeAlias = "int | tuple[Receipt | None, ...] | None"
"""Identifies a charge, for `refund` and `debit`; in a composite, one for each part."""


class Decision(NamedTuple):
    """The answer to one check; true if the call may leave now.

    New fields are only added at the end, with a default.
    """

    allowed: bool
    """Whether the call is admitted."""
    limit: int
    """The limit that was applied: a burst, or a window's limit."""
    current: int
    """Units in use, including this call's if it was admitted."""
    remaining: int
    """Whole units that would still be admitted now; never negative."""
    reset_at_us: int
    """When all units will be free again if no further calls are made."""
    retry_after_us: int
    """0 if admitted; otherwise the exact time after which the same call would be admitted."""
    binding: str | None = None
    """In a composite: the name of the part that decided."""
    receipt: Receipt = None
    """Identifies the charge for `refund`; None if nothing was charged."""
    delay_us: int = 0
    """How far ahead a shaper's slot is; 0 for a gate's decision."""

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
    """When calls of a given cost would be admitted, if there were no other calls."""

    admits_at_us: int
    """The earliest instant at which one such call is admitted."""
    fits_now: int
    """How many such calls would be admitted now, one after another."""
    full_at_us: int
    """When all units are free again."""

    @property
    def admits_at(self) -> float:
        """`admits_at_us` in epoch seconds."""
        return self.admits_at_us / 1_000_000

    @property
    def full_at(self) -> float:
        """`full_at_us` in epoch seconds."""
        return self.full_at_us / 1_000_000
