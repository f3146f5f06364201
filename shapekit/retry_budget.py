"""RetryBudget: how many calls may be tried again, of those that all workers make."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from shapekit.algorithms.base import share_of
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.rate import MAX_SPAN_US, whole
from shapekit.stores.base import Store

__all__ = ["RetryBudget"]

_TOKEN = 1_000_000
"""What a retry costs: shares are counted in millionths."""
_MOST_TOKENS = 1_000_000
_KEY = "budget"


class RetryBudget:
    """A bucket of tokens on a store: a call earns a share of one, a retry spends one.

        >>> from shapekit import MemoryStore
        >>> budget = RetryBudget(MemoryStore(), "stripe.retries", share=0.5, reserve=1)
        >>> budget.spend(), budget.spend()
        (True, False)
        >>> budget.earn(), budget.earn(), budget.spend()
        (None, None, True)

    The bucket starts full, with `reserve` tokens, and never holds more. So of any series of calls, by all
    workers that share the store, at most `share x calls + reserve` are retries. Time plays no part in it.

    What is counted is what is missing, in a FixedWindow whose window outlives us: a check takes a token or
    is denied, a refund gives back, down to nothing missing, and every store does each at once for
    everybody. (Where that window ends, in the year 2041, the bucket is full once more.)

    A store that cannot be asked pays for no retry, and what is earned meanwhile is lost.
    """

    def __init__(self, store: Store, name: str, *, share: float, reserve: int) -> None:
        try:
            self._earned = int(share_of(share) * _TOKEN)
        except ConfigError as error:
            raise ConfigError("budget", share, error.bound, "pass a share of calls such as 0.2") from None
        missing_at_most = whole("reserve", reserve, most=_MOST_TOKENS) * _TOKEN
        bucket = FixedWindow(missing_at_most, timedelta(microseconds=MAX_SPAN_US))
        self._now_us = store.clock.now_us
        self._refund = store.bind(name, bucket, "refund")
        self._arefund = store.abind(name, bucket, "refund")
        self._check = store.bind(name, bucket, "check")
        self._acheck = store.abind(name, bucket, "check")

    def earn(self) -> None:
        """A call is made for the first time."""
        with suppress(StoreUnavailableError):
            self._refund(_KEY, self._earned, self._now_us())

    async def aearn(self) -> None:
        """`earn`, awaitable."""
        with suppress(StoreUnavailableError):
            await self._arefund(_KEY, self._earned, self._now_us())

    def spend(self) -> bool:
        """Whether a call may be made again; if so, that is paid for."""
        try:
            return bool(self._check(_KEY, _TOKEN))
        except StoreUnavailableError:
            return False

    async def aspend(self) -> bool:
        """`spend`, awaitable."""
        try:
            return bool(await self._acheck(_KEY, _TOKEN))
        except StoreUnavailableError:
            return False
