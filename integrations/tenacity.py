"""tenacity: retries that wait for their slots, obey the server, and have a budget.

    retrying = shaped_retrying(policy, budget=0.2)
    response = retrying(client.get, url)                   # by call
    fetch = retrying.wraps(fetch)                          # as a decorator: @retrying.wraps
    for attempt in retrying:                               # as an iterator
        with attempt:
            ...

`ashaped_retrying` is its awaitable twin, for asyncio and trio. The parts work with any other `Retrying`:
`wait_slot`, `wait_retry_after`, `retry_if_throttled`, `stop_when_quota_exhausted`.

Each attempt of a call waits for a slot of the policy. Retries are paid for from a budget, which bounds them
to a share of the calls that all workers make.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack
from weakref import WeakKeyDictionary, WeakSet

from shapekit import errors
from shapekit._adapters.http import CallOutcome, observe
from shapekit._runtime.drivers import TASKS, AsyncAlarm, Driver, Twin, run
from shapekit.algorithms.base import CHECK, REFUND, share_of
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.clock import Clock
from shapekit.errors import ConfigError, RateLimitedError, StoreUnavailableError
from shapekit.feedback import Feedback
from shapekit.policy import Admission, Policy, checked_policy
from shapekit.rate import AS_CONFIGURED, MAX_SPAN_US, SECOND_US, Duration, max_wait_us, whole
from shapekit.shaper import Reservation
from shapekit.stores.base import Store

try:
    import tenacity
    from tenacity import AsyncRetrying, RetryCallState, Retrying
    from tenacity.retry import retry_base
    from tenacity.stop import stop_base
    from tenacity.wait import wait_base
except ImportError as error:
    raise errors.missing("shaped_retrying", "tenacity") from error

__all__ = [
    "ashaped_retrying",
    "await_slot",
    "retry_if_throttled",
    "shaped_retrying",
    "stop_when_quota_exhausted",
    "wait_retry_after",
    "wait_slot",
]

_THROTTLED = (429, 503, 529)
_NOT_NOW = (RateLimitedError, StoreUnavailableError)


# parts for any Retrying


class retry_if_throttled(retry_base):  # noqa: N801 - named as tenacity names its own
    """Retry after a 429, 503 or 529, returned or carried by an exception, and after a QueueFullError.

    A spent quota lasts until its period ends, and an exhausted account until its owner pays: neither
    QuotaExhaustedError nor an answer such as OpenAI's `insufficient_quota` is retried. A 429 of shapekit
    (`on_reject="respond"`) counts as the error that it stands for.
    """

    def __call__(self, retry_state: RetryCallState) -> bool:  # noqa: D102 - as tenacity says
        ending = _ending(retry_state)
        refusal = ending.refusal
        if refusal is not None:
            return not refusal.is_exhausted
        answer = ending.answer
        return answer is not None and answer.status in _THROTTLED and not ending.is_exhausted


class stop_when_quota_exhausted(stop_base):  # noqa: N801
    """Stop when the attempt was refused because a quota is spent, by an error or by a 429 of shapekit."""

    def __call__(self, retry_state: RetryCallState) -> bool:  # noqa: D102
        refusal = _ending(retry_state).refusal
        return refusal is not None and refusal.is_exhausted


class wait_retry_after(wait_base):  # noqa: N801
    """Wait as long as the server or a RateLimitedError says; if neither does, as `fallback` says.

    Reads what `shapekit.feedback` reads, from a response that was returned or that an exception carries. The
    wait is at most `max_hold`. The default fallback is `wait_random_exponential(max=60)`.
    """

    def __init__(
        self,
        fallback: wait_base | Callable[[RetryCallState], float] | None = None,
        *,
        max_hold: Duration = "15m",
    ) -> None:
        if fallback is not None and not callable(fallback):
            raise ConfigError("fallback", fallback, "is not a wait", "pass one, such as wait_fixed(1)")
        self.fallback = tenacity.wait_random_exponential(max=60) if fallback is None else fallback
        """Says how long to wait if neither the server nor a refusal does."""
        self._feedback = Feedback(max_hold=max_hold)

    def __call__(self, retry_state: RetryCallState) -> float:  # noqa: D102
        return _stated_s(self._feedback, _ending(retry_state)) or self.fallback(retry_state)


def _stated_s(feedback: Feedback, ending: CallOutcome) -> float:
    """How long the outcome of a call asks to wait, at most the longest hold; 0 if it does not say."""
    refusal = ending.refusal
    if refusal is not None:
        return min(refusal.retry_after, feedback.max_hold_s)
    answer = ending.answer
    return 0.0 if answer is None else feedback.stated(answer.status, answer.headers, time.time())


class _Asking:
    """The key and the cost of attempts: the given ones, or the policy's own."""

    def __init__(self, policy: Policy, *, key: str | None = None, cost: int | None = None) -> None:
        self._policy = checked_policy(policy)
        self._key = policy.key_of(key)
        self._cost = whole("cost", policy.cost_of(cost))


class _Slots(_Asking):
    """Takes slots of a policy for the attempts of a plain Retrying."""

    def _check_place(self, retrying: tenacity.BaseRetrying) -> None:
        if isinstance(retrying, _ShapedRetrying | _AsyncShapedRetrying):
            fix = "leave it out"
            raise ConfigError("wait", self, "takes a second slot: each attempt has one already", fix)
        twin = await_slot if isinstance(retrying, AsyncRetrying) else wait_slot
        if not isinstance(self, twin):
            kind = type(retrying).__name__
            raise ConfigError("wait", self, f"does not serve an {kind}", f"use {twin.__name__}(policy)")

    async def _take(self, driver: Driver, state: RetryCallState) -> float:
        retrying, shaper = state.retry_object, self._policy.shaper
        began_us = shaper.core.clock.now_us()
        self._check_place(retrying)
        if not self._policy.enforce:
            if not await _awaited(retrying.stop(state)):
                admission = self._policy.admit(self._key, cost=self._cost)
                await driver.ask(Twin(admission.__enter__, admission.__aenter__))
                await driver.ask(Twin(admission.leave, admission.aleave))
            return 0.0
        reserve = Twin(shaper.reserve, shaper.areserve)
        reservation = await driver.ask(reserve, self._key, cost=self._cost)
        state.upcoming_sleep = reservation.delay
        try:
            is_over = await _awaited(retrying.stop(state))
        except BaseException as error:
            await driver.given_back(error, partial(self._cancelled, driver, reservation))
            raise
        if is_over:
            await self._cancelled(driver, reservation)
            return reservation.delay
        try:
            await shaper.core.leave(driver, reservation)
        except RateLimitedError as refusal:
            raise refusal from _ending(state).failure
        waited = (shaper.core.clock.now_us() - began_us) / SECOND_US
        state.idle_for += waited
        retrying.statistics["idle_for"] += waited
        return 0.0

    async def _cancelled(self, driver: Driver, reservation: Reservation) -> None:
        # If the store is gone meanwhile, the call ends as it would have.
        with suppress(StoreUnavailableError):
            await self._policy.shaper.core.cancel(driver, reservation)


class wait_slot(_Slots, wait_base):  # noqa: N801
    """Makes each retry wait for a slot of the policy.

    When tenacity asks how long to wait, this takes the earliest slot and waits for it, as every shaped call
    does: a hold moves the slot, and an interrupted wait gives it back. Afterwards there is nothing left to
    sleep: `before_sleep` sees 0 s, and `idle_for` the whole wait. If the slot is too far away, the retrying
    ends with QueueFullError or QuotaExhaustedError.

    tenacity asks for the wait before it asks whether to stop. This asks `stop` first, with the delay as
    `upcoming_sleep`, so no slot is wasted on an attempt that is not made.

    Do not add another wait to it: tenacity would sleep it after the slot. The first attempt takes no slot.
    If the function is shaped itself, by `@shaped` or a transport, every attempt takes a slot already.
    """

    def __call__(self, retry_state: RetryCallState) -> float:  # noqa: D102
        return run(self._take, retry_state)


class await_slot(_Slots):  # noqa: N801
    """`wait_slot` for AsyncRetrying, on asyncio and trio."""

    async def __call__(self, retry_state: RetryCallState) -> float:  # noqa: D102
        return await self._take(TASKS, retry_state)


# the budget of retries

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
    A retry that is not made after all gives its token back.

    The missing tokens are counted, in a FixedWindow that lasts for decades: a check takes a token or is
    denied, a refund gives tokens back until none is missing, and every store does each atomically for all
    workers. (When that window ends, in the year 2041, the bucket is full once more.)

    While the store does not answer, no retry is paid for, and what calls earn is lost.
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
        """Add what a call earns, once for all its attempts."""
        with suppress(StoreUnavailableError):
            await driver.ask(self._refund, _KEY, self._earned, self._now_us())

    async def spend(self, driver: Driver) -> bool:
        """Pay for a retry; returns whether there was a token for it."""
        try:
            return bool(await driver.ask(self._check, _KEY, _TOKEN))
        except StoreUnavailableError:
            return False

    async def give_back(self, driver: Driver) -> None:
        """Give back the token of a retry that is not made."""
        with suppress(StoreUnavailableError):
            await driver.ask(self._refund, _KEY, _TOKEN, self._now_us())


# shaped retrying


class Attempts(_Asking):
    """The attempts of any number of calls with one policy, key and cost.

    `call` is any object that identifies a call. `leave` waits for the slot of an attempt, and returns how
    many seconds that took; `end` is called when the attempt has ended. A hold that `end` observes is for all
    workers. If the store does not answer then, the attempt ends as it would have.
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
        super().__init__(policy, key=key, cost=cost)
        if max_wait is not AS_CONFIGURED:
            max_wait_us(max_wait)
        self._max_wait = max_wait
        store, name = policy.shaper.core.store, f"{policy.name}.retries"
        self.clock = store.clock
        self.budget = RetryBudget(store, name, share=budget, reserve=reserve)
        self._admissions: WeakKeyDictionary[Any, Admission] = WeakKeyDictionary()
        self._paid: WeakSet[Any] = WeakSet()

    async def leave(self, driver: Driver, call: object) -> float:
        """Wait for the slot, or raise the refusal."""
        began_us = self.clock.now_us()
        admission = self._policy.admit(self._key, cost=self._cost, max_wait=self._max_wait)
        try:
            await driver.ask(Twin(admission.__enter__, admission.__aenter__))
        except BaseException as error:
            await driver.given_back(error, partial(self.unpay, driver, call))
            raise
        self._paid.discard(call)
        waited = (self.clock.now_us() - began_us) / SECOND_US
        is_first = call not in self._admissions
        self._admissions[call] = admission
        if is_first:
            try:
                await self.budget.earn(driver)
            except BaseException as error:  # the call that has its slot is not made
                await driver.given_back(error, partial(self.end, driver, call, CallOutcome(failure=error)))
                raise
        return waited

    async def pay(self, driver: Driver, call: object) -> bool:
        """Pay for another attempt; returns whether the budget could."""
        is_paid = await self.budget.spend(driver)
        if is_paid:
            self._paid.add(call)
        return is_paid

    async def unpay(self, driver: Driver, call: object) -> None:
        """Give back what was paid for an attempt that is not made, if anything was."""
        if call in self._paid:
            self._paid.discard(call)
            await self.budget.give_back(driver)

    def in_flight(self, call: object) -> Admission | None:
        """The admission of the running attempt; None if the call is not shaped."""
        return self._admissions.get(call)

    async def end(self, driver: Driver, call: object, ending: CallOutcome) -> None:
        """Observe what the server says, and refund an attempt that does not count."""
        admission, answer, failure = self._admissions[call], ending.answer, ending.failure
        if answer is not None:
            await observe(driver, admission, answer)
        how = None if failure is None else type(failure), failure, None
        await driver.ask(Twin(admission.__exit__, admission.__aexit__), *how)


class _StopWithin(stop_base):
    """Stop when the given `stop` says so, or when no retry can be paid for."""

    def __init__(self, stop: Any, attempts: Attempts) -> None:
        self.stop = stop
        self.attempts = attempts

    def __call__(self, retry_state: RetryCallState) -> bool:
        return bool(self.stop(retry_state)) or not run(self.attempts.pay, retry_state)


class _AsyncStopWithin(_StopWithin):
    async def __call__(self, retry_state: RetryCallState) -> bool:  # type: ignore[override]
        return bool(await _awaited(self.stop(retry_state))) or not await self.attempts.pay(TASKS, retry_state)


class _Nap:
    """The sleep before a retry that was paid for; gives the token back if it is interrupted."""

    def __init__(self, sleep: Callable[[float], Any], budget: RetryBudget) -> None:
        self.sleep = sleep
        self.budget = budget

    def __call__(self, seconds: float) -> Any:
        try:
            self.sleep(seconds)
        except BaseException:
            run(self.budget.give_back)
            raise


class _AsyncNap(_Nap):
    async def __call__(self, seconds: float) -> None:
        try:
            await _awaited(self.sleep(seconds))
        except BaseException as error:
            await TASKS.given_back(error, partial(self.budget.give_back, TASKS))
            raise


class _Shaped(tenacity.BaseRetrying):
    """What the shaped Retrying and AsyncRetrying have in common."""

    attempts: Attempts
    feedback: Feedback
    ended: WeakKeyDictionary[RetryCallState, tenacity.Future]
    stops: type[_StopWithin]
    naps: type[_Nap]
    nap: Callable[[Clock, float], Any]

    @classmethod
    def of(cls, attempts: Attempts, options: _Options) -> Self:
        return cls(**{"sleep": partial(cls.nap, attempts.clock), **_completed(options)}).shaped(attempts)

    def shaped(self, attempts: Attempts) -> Self:
        self.attempts = attempts
        self.feedback = Feedback()
        self.ended = WeakKeyDictionary()
        if not isinstance(self.stop, _StopWithin):
            self.stop = self.stops(self.stop, attempts)
        if not isinstance(self.sleep, _Nap):
            self.sleep = self.naps(self.sleep, attempts.budget)
        return self

    def copy(self, *changes: Any, **kwargs: Any) -> Self:
        return super().copy(*changes, **kwargs).shaped(self.attempts)

    def begin(self) -> None:
        super().begin()
        self.statistics["waited_for_slots"] = 0.0
        self.statistics["waited_for_server"] = 0.0

    async def begins(self, driver: Driver, state: RetryCallState) -> None:
        """Called before tenacity decides: wait for the slot of an attempt, or end an attempt."""
        if state.outcome is None:
            self.statistics["waited_for_slots"] += await self.attempts.leave(driver, state)
        else:
            self.ended[state] = state.outcome
            await self.attempts.end(driver, state, _ending(state))

    def take_back(self, state: RetryCallState) -> Callable[[RetryCallState], Any] | None:
        """Undo a retry that was refused. Returns what concludes the call with the attempt before it; None if
        there was none.
        """
        before = self.ended.get(state)
        if before is None:
            return None
        state.outcome = before
        state.attempt_number -= 1
        self.statistics["attempt_number"] -= 1
        return self.retry_error_callback or _as_it_ended

    async def decided(self, driver: Driver, state: RetryCallState, do: Any) -> None:
        """Called after tenacity has decided: if it does not sleep, there is no other attempt to pay for."""
        if isinstance(do, tenacity.DoSleep):
            stated_s = _stated_s(self.feedback, _ending(state))
            self.statistics["waited_for_server"] += min(stated_s, do)
        else:
            await self.attempts.unpay(driver, state)

    async def broken_off(self, driver: Driver, state: RetryCallState, error: BaseException) -> None:
        """Called if tenacity, or a function that it has called, has raised an error."""
        await driver.given_back(error, partial(self.attempts.unpay, driver, state))
        if state.outcome is None:  # the call that has its slot is not made
            ending = CallOutcome(failure=error)
            await driver.given_back(error, partial(self.attempts.end, driver, state, ending))


class _Attempt(tenacity.AttemptManager):
    """An attempt of a `for` loop. Its call ends with its block, since the loop may be left there.

    The outcome may be set after the block, and is observed when the loop continues.
    """

    def __init__(self, state: RetryCallState, attempts: Attempts) -> None:
        super().__init__(state)
        self._admission = attempts.in_flight(state)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        is_swallowed = super().__exit__(kind, error, trace)
        # The garbage collector may end a generator at any point, where the store must not be asked.
        if self._admission is not None and kind is not GeneratorExit:
            self._leave(self._admission)
        return is_swallowed

    def _leave(self, admission: Admission) -> None:
        admission.leave()


class _AsyncAttempt(_Attempt):
    """The same in a task, where the block is a `with`, which cannot await, or an `async with`."""

    def _leave(self, admission: Admission) -> None:
        admission.leave_soon()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._admission is not None and kind is not GeneratorExit:
            await self._admission.aleave()
        return self.__exit__(kind, error, trace)


class _ShapedRetrying(_Shaped, Retrying):
    stops = _StopWithin
    naps = _Nap

    @staticmethod
    def nap(clock: Clock, seconds: float) -> None:
        clock.sleep(seconds, threading.Event())

    def iter(self, retry_state: RetryCallState) -> Any:
        try:
            run(self.begins, retry_state)
        except _NOT_NOW:
            conclude = self.take_back(retry_state)
            if conclude is None:
                raise
            return conclude(retry_state)
        try:
            do = super().iter(retry_state=retry_state)
        except BaseException as error:
            run(self.broken_off, retry_state, error)
            raise
        run(self.decided, retry_state, do)
        return do

    def __iter__(self) -> Generator[tenacity.AttemptManager, None, None]:
        for attempt in super().__iter__():
            yield _Attempt(attempt.retry_state, self.attempts)


class _AsyncShapedRetrying(_Shaped, AsyncRetrying):
    stops = _AsyncStopWithin
    naps = _AsyncNap

    @staticmethod
    async def nap(clock: Clock, seconds: float) -> None:
        await clock.asleep(seconds, AsyncAlarm())

    async def iter(self, retry_state: RetryCallState) -> Any:
        try:
            await self.begins(TASKS, retry_state)
        except _NOT_NOW:
            conclude = self.take_back(retry_state)
            if conclude is None:
                raise
            return await _awaited(conclude(retry_state))
        try:
            do = await super().iter(retry_state=retry_state)
        except BaseException as error:
            await self.broken_off(TASKS, retry_state, error)
            raise
        await self.decided(TASKS, retry_state, do)
        return do

    # tenacity keeps the state of a run on the object, which tasks may share: each run gets a copy.

    async def __call__(self, fn: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return await AsyncRetrying.__call__(self._of_one_run(), fn, *args, **kwargs)

    def __aiter__(self) -> AsyncRetrying:
        return AsyncRetrying.__aiter__(self._of_one_run())

    async def __anext__(self) -> tenacity.AttemptManager:
        attempt = await super().__anext__()
        return _AsyncAttempt(attempt.retry_state, self.attempts)

    def _of_one_run(self) -> Self:
        run = self.copy()
        run._local.statistics = self.statistics  # noqa: SLF001 - tenacity has no other way to set them
        return run


class _Options(TypedDict, total=False):
    """The options of tenacity."""

    sleep: Any
    stop: Any
    wait: Any
    retry: Any
    before: Any
    after: Any
    before_sleep: Any
    retry_error_callback: Any
    name: str | None
    enabled: bool


def shaped_retrying(
    policy: Policy,
    *,
    key: str | None = None,
    cost: int | None = None,
    max_wait: Duration | None = AS_CONFIGURED,
    budget: float = 0.2,
    reserve: int = 10,
    **options: Unpack[_Options],
) -> Retrying:
    """A Retrying whose attempts wait for slots of the policy, and whose retries have a budget.

    - `key`, `cost`, `max_wait`: as for `policy.admit`.
    - `budget`: the share of calls that may be retried, over all workers that share the policy's store.
      Each call earns that share of a token, each retry spends a token, and `reserve` is how many tokens
      there are at first and at most. Without a token there is no retry.
    - tenacity's `stop`, `wait`, `retry`, `before`, `after`, `before_sleep`, `sleep`, `name`, `enabled` (False
      makes plain calls, which take no slots either) and `retry_error_callback`. Without them: five attempts,
      `wait_retry_after()`, `retry_if_throttled()`.

    `Admission.observe` gets the response that an attempt returns or its exception carries, so a refusal of
    one worker makes all of them wait. The call ends with the result or the exception of its last attempt. If
    the policy refuses the first attempt, the refusal is raised; a retry that it refuses is not made.

    `statistics` has tenacity's `attempt_number` and `idle_for`, and also `waited_for_slots` and
    `waited_for_server` (the part of `idle_for` that the server asked for), in seconds.
    """
    return _ShapedRetrying.of(
        Attempts(policy, key=key, cost=cost, max_wait=max_wait, budget=budget, reserve=reserve), options
    )


def ashaped_retrying(
    policy: Policy,
    *,
    key: str | None = None,
    cost: int | None = None,
    max_wait: Duration | None = AS_CONFIGURED,
    budget: float = 0.2,
    reserve: int = 10,
    **options: Unpack[_Options],
) -> AsyncRetrying:
    """`shaped_retrying`, awaitable, for asyncio and trio; tasks may share it."""
    return _AsyncShapedRetrying.of(
        Attempts(policy, key=key, cost=cost, max_wait=max_wait, budget=budget, reserve=reserve), options
    )


def _completed(options: _Options) -> dict[str, Any]:
    for name, value in options.items():
        if name not in _Options.__annotations__:
            known = ", ".join(_Options.__annotations__)
            raise ConfigError(name, value, "is not an option of shaped_retrying", f"use {known}")
    return {
        "stop": tenacity.stop_after_attempt(5),
        "wait": wait_retry_after(),
        "retry": retry_if_throttled(),
        "retry_error_callback": _as_it_ended,
        **options,
    }


def _ending(state: RetryCallState) -> CallOutcome:
    outcome = state.outcome
    if outcome is None:
        return CallOutcome()
    failure = outcome.exception()
    return CallOutcome(failure=failure) if failure is not None else CallOutcome(outcome.result())


def _as_it_ended(state: RetryCallState) -> Any:
    """Return what the last attempt returned, or raise what it raised."""
    outcome = state.outcome
    if outcome is not None and outcome.failed:
        tenacity.RetryError(outcome).reraise()
    return _ending(state).result


async def _awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
