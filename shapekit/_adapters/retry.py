"""Attempts: each attempt of a call leaves when the policy lets it, and retries are paid for.

Ending: how a call ended, as far as limits are concerned: what it returned, or what it raised.

RetryBudget: how many calls may be tried again, of those that all workers make.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from shapekit._adapters.http.request import ResponseView, aobserve, observe
from shapekit._runtime.drivers import Driver, Twin
from shapekit.admission import Admission, body_of
from shapekit.algorithms.base import CHECK, REFUND, share_of
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.errors import ConfigError, RateLimitedError, StoreUnavailableError
from shapekit.feedback import Feedback
from shapekit.feedback.feedback import Incidents, error_of, says_exhausted
from shapekit.policy import Policy
from shapekit.rate import AS_CONFIGURED, MAX_SPAN_US, SECOND_US, Duration, max_wait_us, whole
from shapekit.stores.base import Store

__all__ = [
    "Attempts",
    "CallOutcome",
    "RetryBudget",
    "StatedDelay",
    "checked_cost_of",
    "checked_key_of",
    "checked_policy",
]


class CallOutcome(NamedTuple):
    """What a call returned, or what it raised."""

    result: Any = None
    failure: BaseException | None = None

    @property
    def answer(self) -> ResponseView | None:
        """The server's answer: what was returned, or what the exception carries, or is."""
        bearers = [self.result]
        if self.failure is not None:
            bearers = [getattr(self.failure, "response", None), self.failure]
        for bearer in bearers:
            for status in (getattr(bearer, "status_code", None), getattr(bearer, "status", None)):
                if isinstance(status, int):
                    # Where an SDK has closed the response, its error has the body.
                    return ResponseView(status, _headers_of(bearer), body_of(bearer) or body_of(self.failure))
        return None

    @property
    def is_exhausted(self) -> bool:
        """Whether the answer says that the account has nothing left to spend."""
        answer = self.answer
        return answer is not None and says_exhausted(error_of(answer.status, answer.body))


class StatedDelay:
    """How long the ending of a call itself says to wait: nothing is concluded where it is silent."""

    def __init__(self, max_hold: Duration = "15m") -> None:
        self._feedback = _Literal(max_hold=max_hold)

    def seconds(self, ending: CallOutcome) -> float:
        """At most `max_hold`; 0 if nothing is said."""
        if isinstance(ending.failure, RateLimitedError):
            return min(ending.failure.retry_after, self._feedback.max_hold_s)
        answer, now = ending.answer, time.time()
        if answer is None:
            return 0.0
        hint = self._feedback.read(answer.status, answer.headers, sent_at=now, received_at=now)
        return 0.0 if hint is None else hint.hold_s


class _NothingConcluded(Incidents):
    """A refusal that does not say how long holds nothing: the caller has a better guess."""

    __slots__ = ()

    def unhinted(
        self, place: Any, first_s: float, sent_at: float, received_at: float, most_s: float | None = None
    ) -> float:
        return 0.0


class _Literal(Feedback):
    """Hears what is said, and concludes nothing."""

    _memory = _NothingConcluded


def _headers_of(bearer: Any) -> Any:
    """The raw pairs where the client keeps them, else what it has."""
    raw = getattr(bearer, "raw_headers", None)
    if raw is None:
        headers = getattr(bearer, "headers", None)
        raw = getattr(headers, "raw", headers)
    return () if raw is None else raw


_TOKEN = 1_000_000
"""What a retry costs: shares are counted in millionths."""
_MOST_TOKENS = 1_000_000
_KEY = "budget"


class RetryBudget:
    """A bucket of tokens on a store: a call earns a share of one, a retry spends one.

        >>> from shapekit import MemoryStore
        >>> from shapekit._runtime.drivers import run
        >>> budget = RetryBudget(MemoryStore(), "stripe.retries", share=0.5, reserve=1)
        >>> run(budget.spend), run(budget.spend)
        (True, False)
        >>> run(budget.earn), run(budget.earn), run(budget.spend)
        (None, None, True)

    The bucket starts full, with `reserve` tokens, and never holds more. So of any series of calls, by all
    workers that share the store, at most `share x calls + reserve` are retries. Time plays no part in it.

    What is counted is what is missing, in a FixedWindow whose window outlives us: a check takes a token or
    is denied, a refund gives back, down to nothing missing, and every store does each at once for
    all workers. (Where that window ends, in the year 2041, the bucket is full once more.)

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
        self._refund = store.twin(name, bucket, REFUND)
        self._check = store.twin(name, bucket, CHECK)

    async def earn(self, driver: Driver) -> None:
        """A call is made for the first time."""
        with suppress(StoreUnavailableError):
            await driver.ask(self._refund, _KEY, self._earned, self._now_us())

    async def spend(self, driver: Driver) -> bool:
        """Whether a call may be made again; if so, that is paid for."""
        try:
            return bool(await driver.ask(self._check, _KEY, _TOKEN))
        except StoreUnavailableError:
            return False


class Attempts:
    """The attempts of any number of calls that ask the same of one policy.

    A call is known by an object of the caller's, `call`. `leave` is called when an attempt is about to
    leave, waits for its slot and returns how many seconds that took; `end` when it has ended. What is
    observed of an ending holds the key for all workers; a store that is gone takes no ending away.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        key: str | None,
        cost: int | None,
        max_wait: Duration | None,
        budget: float,
        reserve: int,
    ) -> None:
        self._policy = checked_policy(policy)
        self._key = checked_key_of(policy, key)
        self._cost = checked_cost_of(policy, cost)
        if max_wait is not AS_CONFIGURED:
            max_wait_us(max_wait)
        self._max_wait = max_wait
        store = policy.shaper.core.store
        self.clock = store.clock
        self.budget = RetryBudget(store, f"{policy.name}.retries", share=budget, reserve=reserve)
        self._admissions: WeakKeyDictionary[Any, Admission] = WeakKeyDictionary()

    async def leave(self, driver: Driver, call: object) -> float:
        """Wait for the slot, or raise what it is refused with."""
        admission, began_us = self._admission(), self.clock.now_us()
        await driver.ask(Twin(admission.__enter__, admission.__aenter__))
        waited = (self.clock.now_us() - began_us) / SECOND_US
        if self._is_first(call, admission):
            await self.budget.earn(driver)
        return waited

    async def end(self, driver: Driver, call: object, ending: CallOutcome) -> None:
        """Hear what the server says, and give back what never counted."""
        admission, answer, failure = self._admissions[call], ending.answer, ending.failure
        if answer is not None:
            await driver.ask(Twin(observe, aobserve), admission, answer)
        how = None if failure is None else type(failure), failure, None
        await driver.ask(Twin(admission.__exit__, admission.__aexit__), *how)

    def _admission(self) -> Admission:
        return self._policy.admit(self._key, cost=self._cost, max_wait=self._max_wait)

    def _is_first(self, call: object, admission: Admission) -> bool:
        is_first = call not in self._admissions
        self._admissions[call] = admission
        return is_first


def checked_policy(policy: Policy) -> Policy:
    """`policy` if it is one."""
    if not isinstance(policy, Policy):
        raise ConfigError("policy", policy, "is not a policy", 'pass one, such as Policy("10/s")')
    return policy


def checked_key_of(policy: Policy, key: str | None) -> str:
    """The given key, or the policy's own."""
    if key is not None and not isinstance(key, str):
        raise ConfigError("key", key, "is not text", 'pass a str such as "default"')
    return policy.key_of(key)


def checked_cost_of(policy: Policy, cost: int | None) -> int:
    """The given cost, or the policy's own."""
    return whole("cost", policy.cost_of(cost))
