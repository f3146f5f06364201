"""Learning: estimates go by what earlier calls of the same key and model have used.

An estimate is multiplied by the largest share that any of the last 32 such calls used of its own estimate,
within bounds: for the input between 1/2 and 2, since bytes tell tokens no better than that, and for the
output between 1/4 and 1, since no answer is longer than its bound.

Lowering lets calls through that may use more than they reserve: all calls in flight may come to their worst
case at once, and no smaller reservation holds that. So only a limit that lets more through anyway, a token
bucket, is estimated that way, where reserving at least a quarter of the output and half of the input bounds
what is used by four times what is reserved. Windows, quotas and money never reserve less than the plain
estimate: an input that was counted too low is raised, and nothing is lowered, so no window has more than the
limit whatever was learned.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from shapekit._runtime import forks
from shapekit.llm.usage import TokenUsage

__all__ = ["Learning"]

LAST = 32
"""How many calls are remembered."""
ENOUGH = 8
"""After how many calls an estimate is lowered."""
MOST_KEYS = 1_024
"""How many keys and models are remembered: those that were settled last."""
WHOLE = 1_024
"""Shares are counted in so many parts, rounded up."""
LEAST_INPUT, MOST_INPUT = WHOLE // 2, 2 * WHOLE
LEAST_OUTPUT = WHOLE // 4


class _Shares(NamedTuple):
    """What one call used of its estimate."""

    input: int
    output: int


class Learning:
    """What the last calls of each key and model have used of their estimates, in this process."""

    def __init__(self, *, scales_input: bool, lowers: bool) -> None:
        self._scales_input = scales_input
        self._lowers = lowers
        self._known: OrderedDict[str, deque[_Shares]] = OrderedDict()
        self._lock = forks.lock()

    def scaled(self, whose: str, estimate: TokenUsage) -> TokenUsage:
        """The estimate of a call, by what was learned."""
        with self._lock:
            last = [*self._known.get(whose, ())]
        if not last:
            return estimate
        may_lower = self._lowers and len(last) >= ENOUGH
        least_input, least_output = (LEAST_INPUT, LEAST_OUTPUT) if may_lower else (WHOLE, WHOLE)
        given = min(MOST_INPUT, max(least_input, *(shares.input for shares in last)))
        given = given if self._scales_input else WHOLE
        answered = min(WHOLE, max(least_output, *(shares.output for shares in last)))
        return TokenUsage(-(-estimate.input * given // WHOLE), -(-estimate.output * answered // WHOLE))

    def learn(self, whose: str, estimate: TokenUsage, usage: TokenUsage) -> None:
        """A call with this estimate has used so much."""
        shares = _Shares(
            _share(usage.input + usage.uncounted, estimate.input), _share(usage.output, estimate.output)
        )
        with self._lock:
            last = self._known.get(whose)
            if last is None:
                last = self._known[whose] = deque(maxlen=LAST)
            last.append(shares)
            self._known.move_to_end(whose)
            if len(self._known) > MOST_KEYS:
                self._known.popitem(last=False)


def _share(used: int, estimated: int) -> int:
    """In parts of the whole; nothing is said by a call that was estimated at nothing."""
    return -(-used * WHOLE // estimated) if estimated else 0
