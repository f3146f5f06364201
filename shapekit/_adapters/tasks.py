"""Tasks: how integrations of task queues take slots for the tasks that a worker receives.

A task takes a slot when a worker first receives it. If the slot is near, the task waits in the worker. If it
is far away, the integration puts the task back into its queue until then, with the slot in a header, so that
it takes no second one. A task that comes too late for its slot takes another.
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
"""When a task comes back after it found the store unavailable."""
LEAST_GRACE_S = 0.01
MOST_GRACE_S = 5.0
"""No slot is used twice: no queue hands the task of a dead worker to another worker sooner than this."""
ON_REJECT = ("fail", "retry")
"""What can happen to a task that would wait too long."""


class TaskShape(PolicyOptions, total=False):
    """The keywords of a task's shape: those of `Policy`, and three more."""

    rate: RateLike | None
    policy: Policy | None
    """An existing policy, instead of its keywords; only `key`, `cost` and the other two may go with it."""
    on_reject: str
    """What happens to a task that would wait too long."""
    grace: Duration
    """How late a task may start and still use its slot."""


Shape: TypeAlias = Policy | TaskShape
"""A policy, or its keywords and those of a task."""

OWN: Final = ("policy", "key", "cost", "on_reject", "grace")


def checked_shape(shape: object) -> Mapping[str, Any]:
    """The keywords of a shape; a policy alone is short for the keyword `policy`."""
    if isinstance(shape, Policy):
        shape = {"policy": shape}
    if not isinstance(shape, Mapping):
        example = 'write shape={"rate": "10/s"}, or shape=policy'
        raise ConfigError("shape", shape, "is neither a policy nor its keywords", example)
    policy = shape.get("policy")
    known = OWN if policy is not None else TaskShape.__annotations__
    for field, value in shape.items():
        if field not in known:
            raise ConfigError(
                f"shape[{field!r}]", value, "is unknown here", f"use some of {', '.join(known)}"
            )
    if policy is not None:
        checked_policy(policy, "shape['policy']")
    if shape.get("concurrency") is not None or (policy is not None and policy.permits is not None):
        bound = "counts calls while they are made, and a shaped task waits elsewhere than it runs"
        fix = "give concurrency= to the client that the task makes its calls with"
        raise ConfigError("shape['concurrency']", "(given)", bound, fix)
    return shape


def check_without_store(spec: Mapping[str, Any], function: Callable[..., Any] | None = None) -> None:
    """Raise ConfigError for keywords of a shape that no policy accepts, before its store is known; with
    `function`, also for a key that names none of its parameters.
    """
    policy = spec.get("policy")
    if policy is None:
        anywhere = {field: value for field, value in spec.items() if field not in ("store", "clock")}
        policy = policy_of(anywhere, name="tried")
        policy.close()
    key, cost = checked_key(spec.get("key", policy.key)), checked_cost(spec.get("cost", policy.cost))
    if function is not None:
        Calls(policy, function, key, cost)


def policy_of(spec: Mapping[str, Any], **otherwise: Any) -> Policy:
    """The policy of a shape, or one with its keywords; `otherwise` holds their defaults."""
    policy: Policy | None = spec.get("policy")
    if policy is not None:
        return policy
    return Policy(**(otherwise | {field: value for field, value in spec.items() if field not in OWN}))


def calls_of(policy: Policy, spec: Mapping[str, Any], function: Callable[..., Any]) -> Calls:
    """Finds the key and the cost of each call of a task's function."""
    key, cost = spec.get("key", policy.key), spec.get("cost", policy.cost)
    return Calls(policy, function, checked_key(key), checked_cost(cost))


def check_shared(policy: Policy) -> None:
    """Raise ConfigError for a policy whose limits other workers do not share."""
    store = policy.shaper.core.store
    if not store.shared:
        fix = f'give policy {policy.name!r} a shared one, such as "redis://localhost"'
        raise ConfigError("store", store, "is in the memory of each process", fix)


def grace_of(policy: Policy) -> float:
    """How late a slot is used by default: three quarters of the time between two slots, at least 10 ms."""
    slots = [rate.period_us / rate.limit / SECOND_US for rate in policy.shaper.core.queue.rates]
    return max(LEAST_GRACE_S, min(slots, default=0.0) * 3 / 4)


def told_of(error: RateLimitedError) -> tuple[Any, ...]:
    """A refusal as plain values."""
    return (type(error).__name__, *error.args)


def refusal_of(fields: Sequence[Any]) -> RateLimitedError:
    """The refusal from the values of `told_of`."""
    kind, decision, *rest = fields
    return _REFUSALS[kind](Decision(*decision), *rest)


_REFUSALS: dict[str, Callable[..., RateLimitedError]] = {
    kind.__name__: kind for kind in (QueueFullError, QuotaExhaustedError, AccountExhaustedError)
}


class PutBack(NamedTuple):
    """Says that a task has to come back later."""

    delay_s: float
    """Seconds from now until the task has to be in its queue again."""
    slot_header: str | None
    """The slot of the task as text, which it has to bring back; None if it has none."""


def slot_header_of(reservation: Reservation, ahead_s: float | None = None) -> str:
    """A slot as text, with how long before it the task has to be back in its queue; None if unknown."""
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


async def give_back(driver: Driver, reservation: Reservation, *, is_unused: bool = True) -> bool:
    """Give back the slot of a task that will not run; one that has passed only if it is known that no task
    has used it. False if that failed, which is logged.
    """
    core = reservation.core
    with ErrorsLogged(reservation.key, "keeps a slot that no task uses"):
        if is_unused:
            with core.reporter.watching(reservation.key):
                is_returned = await core.give_back(driver, reservation)
            core.reporter.cancelled(reservation, is_returned=is_returned)
        else:
            await core.cancel(driver, reservation)
        return True
    return False


class ShapedTasks:
    """Shapes the tasks of one name: each waits in its worker, or is put back into its queue.

    `near_s`: the longest wait in a worker. `ahead_s`: how long before its slot a task comes back, if no other
    tasks are in its queue.
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
        spec = checked_shape(shape)
        policy = policy_of(spec, name=name, store=store)
        check_shared(policy)
        self.policy = policy
        self.calls = calls_of(policy, spec, function)
        """The key and the cost that each task has under the policy."""
        self._on_reject = one_of("on_reject", spec.get("on_reject", "fail"), ON_REJECT)
        self._grace_s = min(MOST_GRACE_S, grace_of(policy))
        if (grace := spec.get("grace")) is not None:
            self._grace_s = duration_us("grace", grace, least=0) / SECOND_US
        self._near_s = near_s
        self._ahead_s = ahead_s
        self._queued_s = 0.0
        """How long the last task that came back waited behind others in its queue: the next ones come back
        earlier by as much. Otherwise all would miss their slots each time, and take new ones at the end.
        """

    async def admit(
        self, driver: Driver, slot_header: str | None, args: Any, kwargs: Mapping[str, Any]
    ) -> Admission | PutBack:
        """Wait for the slot of a task, and admit it; or return when it has to come back.

        `slot_header`: the one of an earlier `PutBack` of this task. Raises the error of a refusal, unless
        refused tasks come back. A task that is interrupted while it waits gives its slot back.
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
                    # Unlike a slot from a header, which a worker that died may have used.
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
                        # Otherwise a quota or a window would count the unused slot.
                        await core.settle(driver, reservation, 0)
                    reservation = None
                    continue
                # A task that comes back too early waits here if it would come back from its queue too late.
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
            if reservation:
                await driver.given_back(error, partial(give_back, driver, reservation, is_unused=is_unused))
            raise

    def admission_with(self, slot_header: str, args: Any, kwargs: Mapping[str, Any]) -> Admission:
        """The admission of a task with this slot, which `admit` has admitted in another process."""
        core = self.policy.shaper.core
        _, *fields = json.loads(slot_header)
        return self.calls.admission(args, kwargs).taken(received(core, fields))

    async def give_back(self, driver: Driver, slot_header: str | None, *, is_unused: bool = True) -> None:
        """`give_back` for the slot that a task has brought."""
        reservation, _ = self._brought(slot_header)
        if reservation is not None:
            await give_back(driver, reservation, is_unused=is_unused)

    def _brought(self, slot_header: str | None) -> tuple[Reservation | None, float | None]:
        """The slot that a task brings, and how long before it the task was to be back; None if unreadable."""
        if slot_header is None:
            return None, None
        try:
            ahead_s, *fields = json.loads(slot_header)
            return received(self.policy.shaper.core, fields), None if ahead_s is None else float(ahead_s)
        except (TypeError, ValueError):
            return None, None
