"""Accounts: the keys of one shaper whose accounts are exhausted, as servers have told this process.

The hold itself is in the store, and all processes obey it. Why the key is held is known only to the processes
that have heard it: they refuse calls with AccountExhaustedError, the others with QueueFullError.
"""

from __future__ import annotations

from shapekit._runtime import forks
from shapekit._runtime.virtual import forgets
from shapekit.clock import Clock
from shapekit.errors import AccountExhaustedError, QueueFullError, RateLimitedError
from shapekit.rate import SECOND_US

__all__ = ["Accounts"]

MOST_KEYS = 1_024
"""How many keys are remembered; the calls of a forgotten key are refused with QueueFullError."""
SLACK_US = SECOND_US
"""By how much two instants may differ that are the same: the clock of the store may run differently."""


class Accounts:
    """Until when the key of each exhausted account is held; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = forks.lock()
        self.begin()
        forgets(self, Accounts.begin)

    def begin(self) -> None:
        """Nothing was heard yet."""
        self._until_us: dict[str, int] = {}

    def exhausted(self, key: str, length_us: int) -> bool:
        """Note that a key is held for its account; False if the answer to another call has said so."""
        with self._lock:
            now = self._clock.now_us()
            before, until = self._until_us.pop(key, now), now + length_us
            if len(self._until_us) >= MOST_KEYS:
                del self._until_us[next(iter(self._until_us))]
            self._until_us[key] = max(before, until)
        return until > before + SLACK_US

    def forget(self, key: str) -> None:
        """The hold of a key was ended, or the key was reset."""
        with self._lock:
            self._until_us.pop(key, None)

    def named(self, error: QueueFullError) -> RateLimitedError:
        """The refusal of a call that would wait for an exhausted account; any other stays what it is."""
        until_us = self._until_us.get(error.key)
        if until_us is None:
            return error
        left_us = until_us - self._clock.now_us()
        # No call waits any more for a hold that another process has ended.
        if left_us <= 0 or error.delay * SECOND_US + SLACK_US < left_us:
            return error
        return AccountExhaustedError(error.decision, error.key, error.policy)
