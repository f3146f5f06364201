"""GCRA: the generic cell rate algorithm."""

from __future__ import annotations

from typing import ClassVar

from shapekit.algorithms.meter import Meter

__all__ = ["GCRA"]


class GCRA(Meter):
    """A cold key may see burst + limit calls in its first period, and `limit` in each one after.

    Invariant: for any calls i <= j that were admitted, `t_j - t_i >= (cost(i..j) - burst) * T`, with
    T = period/limit. So in any span of length L at most `burst + L/T` units are admitted, and that
    many can be: `burst` at once, then one every T.

        >>> gcra = GCRA("10/s", burst=2)
        >>> first = gcra.check(None, 0, 1)
        >>> second = gcra.check(first.state, 0, 1)
        >>> third = gcra.check(second.state, 0, 1)
        >>> [step.decision.allowed for step in (first, second, third)]
        [True, True, False]
        >>> third.decision.retry_after
        0.1

    The right choice for most limits: one number of state, smooth, exact. `burst=1` spaces calls
    evenly; the default, `burst=limit`, lets an idle key spend a whole period at once.
    """

    __slots__ = ()
    kind: ClassVar[str] = "gcra"
