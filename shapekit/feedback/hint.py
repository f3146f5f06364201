"""ServerHint: what one answer says about its server's limits."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ServerHint"]


class ServerHint(NamedTuple):
    """What an answer says; None where it says nothing. All times are seconds from its arrival."""

    hold_s: float = 0.0
    """How long nobody may leave; 0 if there is nothing to wait for."""
    remaining: int | None = None
    """What is left: of the family or policy that is closest to its end, if there are several."""
    limit: int | None = None
    """How much there is in all."""
    window_s: float | None = None
    """The window that the limit is for."""
    reset_s: float | None = None
    """When there is more again; in the dialects of token buckets, when there is all again."""
    scope: str | None = None
    """What the hint is about, if less than the whole server: a GitHub resource, a Discord bucket."""


SAYS_NOTHING = ServerHint()
