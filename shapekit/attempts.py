"""Attempts: each attempt of a call leaves when the policy lets it, and retries are paid for."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from shapekit.admission import Admission
from shapekit.ending import Ending
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.outgoing import aobserve, observe
from shapekit.policy import Policy
from shapekit.rate import SECOND_US, Duration, whole
from shapekit.retry_budget import RetryBudget
from shapekit.waiting import max_wait_us

__all__ = ["Attempts", "checked_cost_of", "checked_key_of", "checked_policy"]


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
        max_wait_us(max_wait)
        self._max_wait = max_wait
        store = policy.shaper._store
        self.clock = store.clock
        self.budget = RetryBudget(store, f"{policy.name}.retries", share=budget, reserve=reserve)
        self._admissions: WeakKeyDictionary[Any, Admission] = WeakKeyDictionary()

    def leave(self, call: object) -> float:
        """Wait for the slot, or raise what it is refused with."""
        admission, began_us = self._admission(), self.clock.now_us()
        admission.__enter__()
        waited = (self.clock.now_us() - began_us) / SECOND_US
        if self._is_first(call, admission):
            self.budget.earn()
        return waited

    async def aleave(self, call: object) -> float:
        """`leave`, awaitable."""
        admission, began_us = self._admission(), self.clock.now_us()
        await admission.__aenter__()
        waited = (self.clock.now_us() - began_us) / SECOND_US
        if self._is_first(call, admission):
            await self.budget.aearn()
        return waited

    def end(self, call: object, ending: Ending) -> None:
        """Hear what the server says, and give back what never counted."""
        admission, answer, failure = self._admissions[call], ending.answer, ending.failure
        if answer is not None:
            observe(admission, answer)
        try:
            admission.__exit__(None if failure is None else type(failure), failure, None)
        except StoreUnavailableError:
            pass

    async def aend(self, call: object, ending: Ending) -> None:
        """`end`, awaitable."""
        admission, answer, failure = self._admissions[call], ending.answer, ending.failure
        if answer is not None:
            await aobserve(admission, answer)
        try:
            await admission.__aexit__(None if failure is None else type(failure), failure, None)
        except StoreUnavailableError:
            pass

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
