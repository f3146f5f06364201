"""Tasks: how integrations of task queues take slots for tasks that come to a worker.

A task takes a slot when a worker first looks at it. If the slot is near, it waits where it is. If the slot is
far away, the integration puts the task back into its queue, to come back at that time, and with the slot in
writing: then it takes no second one. A task that comes too late for its slot takes another.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from shapekit._runtime.drivers import Driver
from shapekit._runtime.process import ErrorsLogged
from shapekit.config import PolicyOptions, checked_cost, checked_key
from shapekit.decision import Decision
from shapekit.decorator import Calls
from shapekit.errors import (
    AccountExhaustedError,
    ConfigError,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    StoreUnavailableError,
)
from shapekit.policy import Admission, Policy, checked_policy
from shapekit.rate import SECOND_US, Duration, RateLike, duration_us, one_of
from shapekit.shaper import Reservation, received, sent
from shapekit.stores import StoreLike

AGAIN_S = 1.0
"""When a task comes back that found the store unavailable."""
LEAST_GRACE_S = 0.01
MOST_GRACE_S = 5.0
"""No queue gives a task that a worker has died with to another one sooner: so no slot is used twice."""
ON_REJECT = ("fail", "retry")
"""What may happen to a task that would have to wait too long."""


class TaskShape(PolicyOptions, total=False):
    """The keywords of a task's shape: those of `Policy`, and three more."""

    rate: RateLike | None
    policy: Policy | None
    """An existing policy, instead of its keywords; only `key`, `cost` and the other two may go with it."""
    on_reject: str
    """What happens to a task that would have to wait too long."""
    grace: Duration
    """How late a task may start and still use its slot."""


Shape: TypeAlias = Policy | TaskShape
"""A policy, or its keywords and those of a task."""

OWN: Final = ("policy", "key", "cost", "on_reject", "grace")


def checked_shape(shape: object) -> tuple[Mapping[str, Any], Policy | None]:
    """The keywords of a shape, and its policy if there is one."""
    if isinstance(shape, Policy):
        if shape.permits is not None:
            raise in_flight()
        return {}, shape
    if not isinstance(shape, Mapping):
        example = 'write shape={"rate": "10/s"}, or shape=policy'
        raise ConfigError("shape", shape, "is neither a policy nor its keywords", example)
    policy = shape.get("policy")
    known = OWN if policy is not None else TaskShape.__annotations__
    for field, told in shape.items():
        if field not in known:
            raise ConfigError(f"shape[{field!r}]", told, "is unknown here", f"use some of {', '.join(known)}")
    if policy is not None:
        checked_policy(policy, "shape['policy']")
    if shape.get("concurrency") is not None or (policy is not None and policy.permits is not None):
        raise in_flight()
    return shape, policy


def check_without_store(spec: Mapping[str, Any], function: Callable[..., Any] | None = None) -> None:
    """Raise ConfigError for keywords of a shape that no policy takes, whatever store it will be on; with the
    function, also for a key that it has no parameters for.
    """
    policy = spec.get("policy")
    if policy is None:
        anywhere = {field: told for field, told in spec.items() if field not in ("store", "clock")}
        policy = policy_of(anywhere, name="tried")
        policy.close()
    key, cost = checked_key(spec.get("key", policy.key)), checked_cost(spec.get("cost", policy.cost))
    if function is not None:
        Calls(policy, function, key, cost)


def policy_of(spec: Mapping[str, Any], **otherwise: Any) -> Policy:
    """The policy with the keywords of a shape; `otherwise`: those that it has where the shape has none."""
    return Policy(**(otherwise | {field: told for field, told in spec.items() if field not in OWN}))


def calls_of(policy: Policy, spec: Mapping[str, Any], function: Callable[..., Any]) -> Calls:
    """The key and the cost that each call of a task's function has under its policy."""
    key, cost = spec.get("key", policy.key), spec.get("cost", policy.cost)
    return Calls(policy, function, checked_key(key), checked_cost(cost))


def in_flight() -> ConfigError:
    """What to raise where a shape bounds the calls in flight."""
    bound = "counts calls while they are made, and a shaped task waits elsewhere than it runs"
    fix = "give concurrency= to the client that the task makes its calls with"
    return ConfigError("shape['concurrency']", "(given)", bound, fix)


def grace_of(policy: Policy) -> float:
    """How late a slot is still used, if nothing is said: three quarters of one, but at least 10 ms."""
    slots = [rate.period_us / rate.limit / SECOND_US for rate in policy.shaper.core.queue.rates]
    return max(LEAST_GRACE_S, min(slots, default=0.0) * 3 / 4)


def told_of(error: RateLimitedError) -> tuple[Any, ...]:
    """A refusal as plain values."""
    return (type(error).__name__, *error.args)


def refusal_of(told: Sequence[Any]) -> RateLimitedError:
    """The refusal that these values tell of."""
    kind, decision, *rest = told
    return _REFUSALS[kind](Decision(*decision), *rest)


_REFUSALS: dict[str, Callable[..., RateLimitedError]] = {
    kind.__name__: kind for kind in (QueueFullError, QuotaExhaustedError, AccountExhaustedError)
}


class PutBack(NamedTuple):
    """A task has to come back later."""

    delay_s: float
    """Seconds from now until it is to be in its queue again."""
    slot_header: str | None
    """What it has to bring along: its slot, as text. None if it has none."""


def slot_header_of(reservation: Reservation, ahead_s: float | None = None) -> str:
    """A slot as text, and how long before it its task is to be back in the queue; None if that is unknown."""
    return json.dumps((ahead_s, *sent(reservation)), separators=(",", ":"))


def in_context(function: Callable[..., Any], context: Callable[[Any, Any], Any]) -> Any:
    """The function, each call of which runs in a context."""

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        async with context(args, kwargs):
            return await function(*args, **kwargs)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with context(args, kwargs):
            return function(*args, **kwargs)

    return awaited if inspect.iscoroutinefunction(function) else called


class ShapedTasks:
    """How the tasks of one name are shaped: what they take slots of, and for how long they wait in a worker.

    `near_s` is the longest wait in a worker; `ahead_s`, how long before its slot a task comes back that finds
    nothing else in its queue.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        shape: object,
        near_s: float,
        store: StoreLike | None = None,
        ahead_s: float = 0.0,
    ) -> None:
        spec, policy = checked_shape(shape)
        if policy is None:
            policy = policy_of(spec, name=name, store=store)
        if not policy.shaper.core.store.shared:
            fix = f'give policy {policy.name!r} a shared one, such as "redis://localhost"'
            raise ConfigError("store", policy.shaper.core.store, "is in the memory of each process", fix)
        self.policy = policy
        self.calls = calls_of(policy, spec, function)
        """The key and the cost that each task has under the policy."""
        self._on_reject = one_of("on_reject", spec.get("on_reject", "fail"), ON_REJECT)
        self._grace_s = min(MOST_GRACE_S, grace_of(policy))
        if (told := spec.get("grace")) is not None:
            self._grace_s = duration_us("grace", told, least=0) / SECOND_US
        self._near_s = near_s
        self._ahead_s = ahead_s
        self._queued_s = 0.0
        """For how long the last task that came back stood behind others in the queue: the next come back so
        much earlier. Else they would all miss their slots, each time, and take others at the end of the line.
        """

    async def admit(
        self, driver: Driver, slot_header: str | None, args: Any, kwargs: Mapping[str, Any]
    ) -> Admission | PutBack:
        """Wait for the slot of a task, and admit it; or say when it has to come back.

        `slot_header` is what the task brings along from an earlier `PutBack`. Raises the error of a
        refusal, unless refused tasks are to come back. A task that is interrupted while it waits gives its
        slot back.
        """
        admission = self.calls.admission(args, kwargs).unentered()
        core = self.policy.shaper.core
        if not self.policy.enforce:
            measured = await core.measure(driver, admission.key, admission.cost, core.max_wait_us)
            return admission.taken(measured)
        (reservation, ahead_s), is_unused = self._brought(slot_header), False
        try:
            while True:
                has_moved = False
                if reservation is None:
                    key = await core.checked(driver, admission.key, admission.cost)
                    reservation = await core.reserve(driver, key, admission.cost, core.max_wait_us)
                    if not reservation:
                        await core.leave(driver, reservation)
                    # One that was brought may have been used by a worker that died then.
                    remaining_s, is_unused = reservation.delay, True
                elif coming := await core.coming(driver, reservation, self._grace_s, is_unused=is_unused):
                    reservation, remaining_s, has_moved = coming
                    if ahead_s is not None and not has_moved:
                        self._queued_s = max(0.0, ahead_s - remaining_s)
                        ahead_s = None
                else:
                    if ahead_s is not None:
                        self._queued_s = max(0.0, ahead_s - await core.remaining(driver, reservation))
                        ahead_s = None
                    if is_unused:
                        # A quota or a window would go on counting it.
                        await core.settle(driver, reservation, 0)
                    reservation = None
                    continue
                # One that has come back too early waits here, if it would come back from the queue too late.
                most_s = 0.0 if is_unused else min(self._queued_s, MOST_GRACE_S)
                if remaining_s > max(self._near_s, most_s) and not has_moved:
                    ahead_s = min(remaining_s, self._ahead_s + self._queued_s)
                    return PutBack(remaining_s - ahead_s, slot_header_of(reservation, ahead_s))
                if remaining_s > 0:
                    until_us = core.clock.now_us() + round(remaining_s * SECOND_US)
                    await driver.sleep(core.sleepers, until_us)
                if remaining_s <= 0 or has_moved:
                    return admission.taken(reservation, max(0.0, -remaining_s))
        except RateLimitedError as error:
            if self._on_reject == "fail":
                raise
            return PutBack(max(error.retry_after, self._near_s) - self._ahead_s, None)
        except StoreUnavailableError:
            return PutBack(AGAIN_S, slot_header_of(reservation) if reservation else None)
        except BaseException as error:
            if reservation is not None:
                await driver.given_back(error, partial(self._given_up, driver, reservation))
            raise

    def admission_with(self, slot_header: str, args: Any, kwargs: Mapping[str, Any]) -> Admission:
        """The admission of a task that `admit` has admitted in another process, whose slot this is."""
        core = self.policy.shaper.core
        _, *told = json.loads(slot_header)
        return self.calls.admission(args, kwargs).taken(received(core, told))

    async def give_back(self, driver: Driver, slot_header: str | None) -> None:
        """Give back the slot of a task that will not run, also one that has passed. A failure is logged."""
        reservation, _ = self._brought(slot_header)
        if reservation is not None:
            await self._given_up(driver, reservation)

    def _brought(self, slot_header: str | None) -> tuple[Reservation | None, float | None]:
        """The slot that a task brings along, and how long before that it was to be back; None for what cannot
        be read.
        """
        if slot_header is None:
            return None, None
        try:
            ahead_s, *told = json.loads(slot_header)
            return received(self.policy.shaper.core, told), None if ahead_s is None else float(ahead_s)
        except (TypeError, ValueError):
            return None, None

    async def _given_up(self, driver: Driver, reservation: Reservation) -> None:
        with ErrorsLogged(reservation.key, "keeps a slot that no task uses"):
            if not await reservation.core.cancel(driver, reservation):
                await reservation.core.settle(driver, reservation, 0)
