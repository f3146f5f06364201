"""Policy: all limits of one API, under one name.

Wrappers, decorators and workers use a policy alone: they `admit` a call, let it leave, and `settle` what it
turned out to cost.

Admission: one call under a policy. If the policy bounds the calls in flight, a call takes its permit before
its slot, since a slot that had to wait for a permit would pass unused. A call gives its permit back if it is
refused, if it stops waiting, and while it waits for a held scope.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import timedelta
from functools import cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, Unpack

from shapekit._queue.adaptive import RateSignal
from shapekit._queue.scopes import ScopedSlots
from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit._runtime.process import SWITCH, ErrorsLogged
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.quota import QuotaUsage, quotas_of
from shapekit.config import (
    PolicyOptions,
    checked_cost,
    checked_feedback,
    checked_key,
    checked_options,
    concurrency_from,
    fields_of,
    never_counted,
    quotas_from,
    table_of,
)
from shapekit.decision import Decision
from shapekit.errors import ConfigError, CostExceedsLimitError, QueueFullError, after_waiting, whose
from shapekit.events import Listener, Listening
from shapekit.keys import SCOPE, text_of
from shapekit.rate import (
    AS_CONFIGURED,
    SECOND_US,
    Duration,
    Fits,
    RateLike,
    boolean,
    max_wait_us,
    timeout_us,
    whole,
)
from shapekit.shaper import UNPACED, Core, Outlook, Reservation, Shaper, checked_rates, limits_shown
from shapekit.stores import StoreLike
from shapekit.stores.base import changed, set_by

if TYPE_CHECKING:
    from shapekit._queue.inflight import Permit, Permits
    from shapekit.algorithms.overrides import Change, Override
    from shapekit.feedback import Feedback, ServerHint
    from shapekit.keys import Target

__all__ = ["Admission", "Policy", "body_of", "headers_of", "hint_of", "status_of"]


class Policy:
    """All limits of one API, under one name: rates, quotas, calls in flight.

        >>> from shapekit import Policy
        >>> stripe = Policy("25/s", name="stripe", max_wait="2s", quota="1_000_000/month")
        >>> with stripe.admit() as admission:
        ...     admission.delay
        0.0

    The rate, the gates and the quota apply together: a call leaves when all of them admit it, and is
    charged to all or to none.

    - `quota`: a `Quota`, or text such as `"1_000_000/month"`; with `spread=True` the rest of the quota is
      spent evenly over the rest of its period.
    - `key`: what the limit is counted for: text, a template over the arguments of a call such as
      `"{user_id}"`, or a callable that gets these arguments and returns text.
    - `cost`: what a call costs: a number, or a callable that gets the arguments of the call.
    - `enforce=False`: every call leaves at once, and its admission says what would have happened.
    - `refund_on`: exceptions (or a predicate) after which a call does not count.
    - `feedback="hold"`: answers that are passed to `Admission.observe` may hold the key for all workers: a
      429, a `Retry-After`, nothing remaining. None ignores answers; a `Feedback` sets the details; a callable
      reads an `Answer` itself.
    - `adaptive`: instead of a rate, an `Adaptive`: shapekit finds the rate from the server's answers.
    - `concurrency`: how many calls may be in flight at once, over all workers; `Concurrency` sets the lease.
    - the rest as for `Shaper`: `burst`, `pace`, `gates`, `max_wait`, `headroom`, `prefetch`, `store`, `clock`
      and `name`.
    """

    def __init__(self, rate: RateLike | None = None, **options: Unpack[PolicyOptions]) -> None:
        given = checked_options("Policy", options)
        key, cost = given.pop("key", "default"), given.pop("cost", 1)
        quotas = quotas_from(given.pop("quota", None), given.pop("spread", False))
        in_flight = concurrency_from(given.pop("concurrency", None))
        enforce, refund_on = given.pop("enforce", True), given.pop("refund_on", None)
        feedback = given.pop("feedback", "hold")
        gates, adaptive = given.pop("gates", ()), given.get("adaptive")
        if rate is not None:
            checked_rates(rate, "Policy")
        elif adaptive is None and in_flight is not None:
            rate = UNPACED
        elif adaptive is None and not gates and not quotas:
            raise ConfigError("rate", rate, "is missing", 'write Policy("10/s")')
        # The other options are the shaper's.
        self.shaper = Shaper(rate, gates=(*gates, *quotas) if isinstance(gates, Sequence) else gates, **given)
        """The queue under the policy."""
        self.name = self.shaper.name
        """The name of the limit in events, metrics and the keys of the store."""
        self.scoped = ScopedSlots(self.shaper.core)
        self.permits: Permits | None = None
        if in_flight is not None:
            from shapekit._queue.inflight import Permits  # noqa: PLC0415 - only for concurrency=

            core = self.shaper.core
            self.permits = Permits(self.name, core.store, in_flight, core.sleepers)
        self.key = checked_key(key)
        """The key, template or callable that was given."""
        self.cost = checked_cost(cost)
        """The cost or callable that was given."""
        self.enforce = boolean("enforce", enforce)
        """Whether calls wait and are refused; false where they are only measured."""
        self.is_plain = self.enforce and in_flight is None and adaptive is None
        """Whether calls only wait for their slots, and nothing else is counted or measured."""
        self.refund_on = never_counted(refund_on)
        """Says whether an exception means that the call does not count; None without `refund_on`."""
        self._feedback_spec = checked_feedback(feedback)
        if adaptive is not None and feedback is None:
            fix = 'leave it out, or name a dialect: Feedback("ietf")'
            raise ConfigError("feedback", None, "leaves adaptive= without answers", fix)

    @classmethod
    def from_dict(
        cls, fields: Mapping[str, Any], *, name: str | None = None, store: StoreLike | None = None
    ) -> Self:
        """A policy from a dict of plain values, such as a table of a configuration file.

            >>> gates = [{"strategy": "gcra", "rate": "100/min"}]
            >>> Policy.from_dict({"rate": "10/s", "gates": gates}, name="api")  # doctest: +ELLIPSIS
            Policy('10/s', burst=1, pace='smooth', gates=(GCRA(...burst=100),), name='api')

        A strategy is a table, too: its name under `strategy`, and its arguments.
        """
        options: dict[str, Any] = {"name": name, **fields_of(fields), "store": store}
        return cls(**options)

    @classmethod
    def from_toml(cls, path: str | PathLike[str], name: str, *, store: StoreLike | None = None) -> Self:
        """The policy in the table `[name]` of a TOML file; errors name file, table and field."""
        table = table_of(path, name)
        try:
            return cls.from_dict(table, name=name, store=store)
        except ConfigError as error:
            raise error.within(f"{path} [{name:.80}]") from None

    def admit(
        self,
        key: str | None = None,
        *,
        cost: int | None = None,
        max_wait: Duration | None = AS_CONFIGURED,
        timeout: Duration | None = None,
    ) -> Admission:
        """A context manager that waits until the call may leave, and yields its `Admission`.

        `key` and `cost` default to the policy's own, if those do not depend on the call. If it is never
        entered, it shapes nothing, and emits a RuntimeWarning.
        """
        waits: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        if max_wait is not AS_CONFIGURED:
            waits["max_wait"] = max_wait
        # On the path of every call: `key_of` and `cost_of` are called only if they are needed.
        own_key = self.key_of(None) if key is None else key
        if cost is None:
            own = self.cost
            cost = own if isinstance(own, int) else self.cost_of(None)
        if own_key.__class__ is not str:
            own_key = text_of(own_key)
        if SCOPE in own_key:
            bound = f"contains {SCOPE!r}, by which scopes are held"
            raise ConfigError("key", own_key, bound, "leave that out")
        return Pending(self, own_key, cost, waits)

    aadmit = admit
    """`admit`, for `async with`."""

    @cached_property
    def feedback(self) -> Feedback | None:
        """The reader of the server's answers; None if the policy ignores them."""
        from shapekit.feedback import Feedback  # noqa: PLC0415 - dialects are loaded on first use

        spec = self._feedback_spec
        if spec is None:
            return None
        if isinstance(spec, Feedback):
            return copy(spec)  # each policy counts its own incidents
        return Feedback() if isinstance(spec, str) else Feedback(spec)

    def forecast(self, calls: int = 1, *, key: str | None = None, cost: int | None = None) -> Outlook:
        """When `calls` more calls will have left, if they came now and no others did.

        Waits for a permit of `concurrency` are not foreseen.
        """
        return self.shaper.forecast(calls, key=self.key_of(key), cost=self._foreseen(cost))

    async def aforecast(self, calls: int = 1, *, key: str | None = None, cost: int | None = None) -> Outlook:
        """`forecast`, awaitable."""
        return await self.shaper.aforecast(calls, key=self.key_of(key), cost=self._foreseen(cost))

    def listen(self, listener: Listener) -> Listening:
        """Add a listener for the events of this policy; closing the returned `Listening` removes it."""
        return self.shaper.listen(listener)

    def quotas(self, key: str | None = None) -> list[QuotaUsage]:
        """How much of each quota of a key is used, and how much is left. Consumes nothing.

        Quotas inside composites are included. While the key is held, the figures are those at the hold's end.

            >>> stripe = Policy("25/s", name="stripe", quota="1_000_000/month")
            >>> with stripe.admit(cost=40):
            ...     pass
            >>> (month,) = stripe.quotas()
            >>> month.name, month.per, month.used, month.remaining
            ('quota', 'month', 40, 999960)
        """
        return run(self._quotas, key)

    async def aquotas(self, key: str | None = None) -> list[QuotaUsage]:
        """`quotas`, awaitable."""
        return await self._quotas(TASKS, key)

    async def _quotas(self, driver: Driver, key: str | None) -> list[QuotaUsage]:
        core = self.shaper.core
        own_key = core.check(self.key_of(key), 1)
        if not core.budgets.has_quotas:
            return []
        with core.reporter.watching(own_key):
            looked = await driver.ask(core.look, own_key)
            return quotas_of(core.queue_of(own_key), *looked)

    def configure(self, rate: str | None = None, **change: Unpack[Change]) -> Override:
        """Set limits for all processes that share the store, instead of those in their code.

            >>> stripe = Policy("5/s", name="stripe")
            >>> stripe.configure("20/s", reason="sale").words
            'rate 20/s'

        They apply from each process's next decision on, and waiting calls move. Limits that are not given
        return to those in the code, even if they were set before. The override ends with `unconfigure`, or
        at `until`.

        - `key`: for this key only; `gold-*` for all keys that begin with `gold-`. A key has one override: its
          own, or else the one with the longest matching prefix, or else the policy's.
        - `burst`, `concurrency`, `headroom`: as for the policy.
        - `quota`: other limits for quotas, such as `"2_000_000/month"`. Used units stay used.
        - `state`: `off` for no limit at all, `held` to let no call leave until the override ends.
        - `reason`: in words, shown with the override.
        - `until`: a `datetime`, or epoch seconds.
        """
        return run(self._configure, rate, change)

    async def aconfigure(self, rate: str | None = None, **change: Unpack[Change]) -> Override:
        """`configure`, awaitable."""
        return await self._configure(TASKS, rate, change)

    async def _configure(self, driver: Driver, rate: str | None, change: Change) -> Override:
        from shapekit.algorithms.overrides import effective, override_of, placed  # noqa: PLC0415 - operators

        store = self.shaper.core.store
        wall_us = store.clock.wall_us()
        override = override_of(rate, change, set_by(), wall_us)
        if override.is_over(wall_us):
            fix = f"name an instant after the present, which is {override.set_at:.0f}"
            raise ConfigError("until", change.get("until"), "has passed already", fix)
        effective(self.shaper.core.queue, override)
        if override.concurrency is not None and self.permits is None:
            bound, fix = ("needs a policy with concurrency=", "set concurrency= in the code")
            raise ConfigError("concurrency", override.concurrency, bound, fix)
        await changed(driver, store, self.name, placed(override))
        return override

    def configured(self) -> list[Override]:
        """The overrides in force, set by any process."""
        return run(self._configured)

    async def aconfigured(self) -> list[Override]:
        """`configured`, awaitable."""
        return await self._configured(TASKS)

    async def _configured(self, driver: Driver) -> list[Override]:
        store = self.shaper.core.store
        await driver.ask(Twin(store.read_overrides, store.aread_overrides), self.name)
        return list(store.settings(self.name).known.overrides)

    def unconfigure(self, key: str | None = None) -> bool:
        """Remove the override of the policy, or of a key or pattern; returns whether there was one.

        The limits in the code apply again.
        """
        return run(self._unconfigure, key)

    async def aunconfigure(self, key: str | None = None) -> bool:
        """`unconfigure`, awaitable."""
        return await self._unconfigure(TASKS, key)

    async def _unconfigure(self, driver: Driver, key: str | None) -> bool:
        from shapekit.algorithms.overrides import without  # noqa: PLC0415 - operators alone

        store = self.shaper.core.store
        before, after = await changed(driver, store, self.name, lambda overrides: without(overrides, key))
        return len(before) > len(after)

    def close(self) -> None:
        """Wake all waiting calls; close the store if this policy made it."""
        self.shaper.close()

    async def aclose(self) -> None:
        """`close`, awaitable."""
        await self.shaper.aclose()

    def key_of(self, key: str | None) -> str:
        """The given key, or the policy's own."""
        if key is not None:
            return text_of(key)
        if isinstance(self.key, str):
            return self.key
        fix = 'pass admit(key="…")'
        raise ConfigError("key", key, "depends on the values of a call, and none are given", fix)

    def cost_of(self, cost: int | None) -> int:
        """The given cost, or the policy's own."""
        if cost is not None:
            return cost
        if isinstance(self.cost, int):
            return self.cost
        fix = "pass admit(cost=…)"
        raise ConfigError("cost", cost, "depends on the values of a call, and none are given", fix)

    def _foreseen(self, cost: int | None) -> int:
        if cost is None:
            return self.cost if isinstance(self.cost, int) else 1
        return cost

    def __repr__(self) -> str:
        shown = limits_shown(self.shaper)
        if self.permits is not None:
            limit = self.permits.limit
            shown.append(f"concurrency={limit.limit if limit == Concurrency(limit.limit) else limit!r}")
        if not self.enforce:
            shown.append("enforce=False")
        return f"Policy({', '.join(shown)}, name={self.name!r})"


def checked_policy(policy: Any, field: str = "policy") -> Policy:
    """The policy, or ConfigError."""
    if not isinstance(policy, Policy):
        raise ConfigError(field, policy, "is not a policy", 'pass one, such as Policy("10/s")')
    return policy


_REFUSED, _FAILED, _ILL = 429, 400, 500
_REFUSING = (402, 403, 503, 529)
"""The statuses, beside 429, with which servers refuse calls that come too fast."""


class Admission:
    """One call under a policy: `with` or `async with` waits until it may leave.

    An admission that is made with a reservation is already entered: its call leaves now.
    """

    __slots__ = (
        *("_is_enclosing", "_left_us", "_permit", "_reservation", "_unheard", "_waits"),
        *("cost", "key", "policy", "sent_at", "target"),
    )

    def __init__(
        self,
        policy: Policy,
        key: str,
        cost: int,
        waits: Mapping[str, Any],
        reservation: Reservation | None = None,
    ) -> None:
        self.key = key
        """The key whose limit the call takes from."""
        self.cost = cost
        """The cost that the call was admitted with."""
        self.policy = policy
        self._waits = waits
        self._permit: Permit | None = None
        self._is_enclosing = False
        self.target: Target | None = None
        """Where the call goes, if that is known; then a hold may apply to that part of the server alone."""
        self.sent_at = 0.0 if reservation is None else policy.shaper.core.clock.wall_us() / SECOND_US
        """When the call left, in epoch seconds on the clock of the store; 0 before."""
        self._reservation = reservation
        self._unheard = False
        """Whether the store has not answered an earlier `settle`, which it may have applied."""

    @property
    def delay(self) -> float:
        """Seconds that the call was delayed, or would have been with `enforce=True`."""
        return self.reservation.delay

    @property
    def decision(self) -> Decision:
        """The decision, as from a gate. It is a denial only if the policy has `enforce=False`."""
        return self.reservation.decision

    @property
    def reservation(self) -> Reservation:
        """The reservation of the call's slot."""
        if self._reservation is None:
            raise ConfigError("admission", None, "was not entered", "write: with policy.admit() as admission")
        return self._reservation

    def taken(self, reservation: Reservation, late: float | None = None) -> Self:
        """Enter with a slot that was taken elsewhere and has come.

        `late`: how many seconds ago it came; if given, the event `Departed` is emitted.
        """
        self.__class__ = _Taken  # type: ignore[assignment]
        self._reservation = reservation
        self._leaves()
        if late is not None and SWITCH.loud:
            # Holds placed meanwhile show only in the time that has passed.
            delay = max(reservation.delay, self.sent_at - (reservation.departs_at - reservation.delay))
            self._core.reporter.departed(
                reservation.key, reservation.cost, round(delay * SECOND_US), round(late * SECOND_US)
            )
        return self

    def settle(self, actual: int) -> bool:
        """Correct the cost of the call once it is known; returns whether it was changed.

        What is given back goes to calls that have no slot yet; waiting calls keep theirs, and while any wait,
        a rate or a bucket gives little or nothing back. May be repeated as more becomes known: the last cost
        counts.
        """
        return run(self._settle, actual)

    async def asettle(self, actual: int) -> bool:
        """`settle`, awaitable."""
        return await self._settle(TASKS, actual)

    @property
    def holds_permit(self) -> bool:
        """Whether the call is counted as in flight, by a policy with `concurrency`."""
        return self._permit is not None

    def unentered(self) -> Self:
        """Turn off the warning for an admission that is never entered, for callers that need not enter it."""
        self.__class__ = Admission  # type: ignore[assignment]
        return self

    def enclosing(self) -> Self:
        """Declare that one task enters and leaves, so that calls in between are recognised as nested."""
        self._is_enclosing = True
        return self

    def leave(self) -> None:
        """End the call and give back its permit, if it has one, as leaving the context does.

        For callers that enter without `with`, and know when the call ends.
        """
        run(self._leave)

    async def aleave(self) -> None:
        """`leave`, awaitable."""
        await self._leave(TASKS)

    def leave_soon(self) -> None:
        """`leave`, for code that runs on an event loop and cannot await."""
        if self._permit is not None and self.policy.permits is not None:
            with ErrorsLogged(self.key, _KEPT):
                self.policy.permits.leave_soon(self._permit)
            self._permit = None

    def drop(self) -> None:
        """`leave`, for finalizers, which may take no locks: another thread gives the permit back."""
        self._permit = None

    def observe(self, response: Any) -> ServerHint | None:
        """Read what a response says about the server's limits, and hold the key if it asks for that.

        If the response names a scope and the call's `target` is known, only that scope is held.

        Takes a response of httpx, requests or aiohttp, or any object with a status and headers. The body
        counts only if it was read before. Returns the hint in the response, or None if it has none or the
        policy has no feedback.
        """
        return run(self._observe, response)

    async def aobserve(self, response: Any) -> ServerHint | None:
        """`observe`, awaitable."""
        return await self._observe(TASKS, response)

    def __enter__(self) -> Self:
        if self._reservation is not None:
            raise self._entered_before()
        self.__class__ = Admission  # type: ignore[assignment]  # and no longer a `Pending`
        # The path of most calls, which only wait for a slot: it avoids a flow, and `**` of an empty dict.
        policy = self.policy
        if policy.is_plain and self.target is None:
            schedule, waits = policy.shaper.schedule, self._waits
            self._reservation = (
                schedule(self.key, cost=self.cost, **waits) if waits else schedule(self.key, cost=self.cost)
            )
            self.sent_at = policy.shaper.core.clock.wall_us() / SECOND_US
        else:
            run(self._enter)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None or self._permit is not None:
            run(self._exit, error)

    async def __aenter__(self) -> Self:
        if self._reservation is not None:
            raise self._entered_before()
        self.__class__ = Admission  # type: ignore[assignment]
        policy = self.policy
        if policy.is_plain and self.target is None:
            schedule, waits = policy.shaper.aschedule, self._waits
            self._reservation = await (
                schedule(self.key, cost=self.cost, **waits) if waits else schedule(self.key, cost=self.cost)
            )
            self.sent_at = policy.shaper.core.clock.wall_us() / SECOND_US
        else:
            await self._enter(TASKS)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None or self._permit is not None:
            await self._exit(TASKS, error)

    @property
    def _core(self) -> Core:
        return self.policy.shaper.core

    # entering

    def _entered_before(self) -> ConfigError:
        return ConfigError("admission", self.key, "was entered before", "admit each call anew")

    async def _enter(self, driver: Driver) -> None:
        permits = None if SWITCH.offs else self.policy.permits
        if not self.policy.enforce:
            await self._measure(driver, permits)
        elif permits is None:
            self._reservation = await self._scheduled(driver, self._waits)
        else:
            await self._enter_with_permit(driver, permits)
        self._leaves()

    def _leaves(self) -> None:
        """Record the departure, also on the clock that does not step, which an adaptive rate uses."""
        clock = self._core.clock
        self.sent_at, self._left_us = clock.wall_us() / SECOND_US, clock.now_us()

    async def _enter_with_permit(self, driver: Driver, permits: Permits) -> None:
        """Take the permit, then the slot; `max_wait` and `timeout` bound both waits together."""
        await self._core.checked(driver, self.key, self.cost)
        bound_us, gives_up_us = self._bound_us(), timeout_us(self._waits.get("timeout"))
        permit = permits.untaken(self.key)
        if self.target is None or not self.policy.scoped.scopes.any_known:  # else once its scope is free
            try:
                await permits.take(driver, permit, bound_us, gives_up_us)
            except BaseException as error:
                self._core.reporter.ended(self.key, self.cost, error, had_slot=False, returned=False)
                raise
        self._permit = permit
        waited_us, waits = permit.waited_us, {**self._waits}
        try:
            if waited_us and bound_us is not None:
                kind = Fits if isinstance(waits.get("max_wait"), Fits) else timedelta
                waits["max_wait"] = kind(microseconds=max(0, bound_us - waited_us))
            if waited_us and gives_up_us is not None:
                waits["timeout"] = timedelta(microseconds=max(0, gives_up_us - waited_us))
            reservation = await self._scheduled(driver, waits, permit, waited_us)
        except BaseException as error:
            await driver.given_back(error, partial(self._leave, driver))
            if not isinstance(error, QueueFullError) or not waited_us or bound_us is None:
                raise
            # A refused slot: its delay and its bound are those of the whole wait.
            whole_wait = waited_us / SECOND_US, bound_us / SECOND_US
            raise after_waiting(error, *whole_wait).with_traceback(error.__traceback__) from error.__cause__
        permits.has_begun(permit, is_enclosing=self._is_enclosing)
        self._reservation = reservation.after_waiting(waited_us) if waited_us else reservation

    async def _scheduled(
        self, driver: Driver, waits: Mapping[str, Any], permit: Permit | None = None, before_us: int = 0
    ) -> Reservation:
        core, scoped, target = self._core, self.policy.scoped, self.target
        if target is not None and scoped.scopes.any_known:
            return await scoped.schedule(
                driver, self.key, target, self.cost, permit=permit, before_us=before_us, **waits
            )
        reservation, (delay_us, late_us) = await core.schedule(driver, self.key, self.cost, **waits)
        if target is not None and scoped.scopes.any_known:
            return await scoped.kept(
                driver, reservation, target, late_us, permit=permit, before_us=before_us, **waits
            )
        core.reporter.departed(self.key, self.cost, before_us + delay_us, late_us)
        return reservation

    async def _measure(self, driver: Driver, permits: Permits | None) -> None:
        """Let the call leave at once, with a permit if one is free; report what shaping would have done."""
        timeout_us(self._waits.get("timeout"))
        try:
            bound_us, code = self._bound_us(), None
            if permits is not None:
                permit = permits.untaken(self.key)
                try:
                    await self._core.checked(driver, self.key, self.cost)
                    with self._core.reporter.watching(self.key):
                        await permits.take(driver, permit, 0)
                except CostExceedsLimitError:
                    """A call that could never leave takes no permit."""
                except QueueFullError:
                    code = QueueFullError.code
                else:
                    self._permit = permit
            self._reservation = await self._core.measure(driver, self.key, self.cost, bound_us, code=code)
        except BaseException as error:
            await driver.given_back(error, partial(self._leave, driver))
            raise

    def _bound_us(self) -> int | None:
        """The longest wait that the call accepts; None without a bound."""
        return max_wait_us(self._waits["max_wait"]) if "max_wait" in self._waits else self._core.max_wait_us

    # leaving

    async def _exit(self, driver: Driver, error: BaseException | None) -> None:
        if isinstance(error, GeneratorExit):
            # The garbage collector may end a generator at any point, where the store must not be asked.
            self.drop()
            return
        try:
            if error is not None and self.policy.refund_on is not None:
                with ErrorsLogged(self.key, "keeps what it was charged"):
                    if self.policy.refund_on(error):
                        await driver.shielded(partial(self._settle, driver, 0))
        except BaseException as interrupt:
            await driver.given_back(interrupt, partial(self._leave, driver))
            raise
        await self._leave(driver)

    async def _leave(self, driver: Driver) -> None:
        permit = self._permit
        if permit is not None and self.policy.permits is not None:
            with ErrorsLogged(self.key, _KEPT):
                await self.policy.permits.leave(driver, permit)
            self._permit = None

    # after the call

    async def _settle(self, driver: Driver, actual: int) -> bool:
        reservation = self.reservation
        differs = whole("actual", actual, least=0) != reservation.cost or self._unheard
        if not differs or not reservation.accepted:
            return False
        was_heard, self._unheard = not self._unheard, True
        number = await self._core.settle(driver, reservation, actual, is_told=self.policy.enforce)
        self._unheard = not number
        if number:
            self._reservation = reservation.costing(actual, number, is_placed=was_heard)
        return number > 0

    async def _observe(self, driver: Driver, response: Any) -> ServerHint | None:
        core = self._core
        hint = hint_of(self, self.policy.feedback, response, core.clock.wall_us() / SECOND_US)
        if not self.policy.enforce:
            return hint
        if hint is not None and hint.exhausted:
            # Such an answer says nothing about the rate.
            if hint.hold_s > 0:
                await core.exhausted(driver, hint.hold_s, self.key)
            return hint
        if core.queue.adapts:
            signal = self._signal(response, hint)
            await self.policy.shaper.adaptive.learn(driver, self.key, signal)
            if signal.is_refusal:
                return hint
        if hint is None:
            return None
        scope = None
        if hint.scope is not None and self.target is not None:
            scope = hint.scope
            self.policy.scoped.scopes.learn(self.key, self.target, scope)
        if hint.hold_s > 0:
            if scope is None:
                await core.hold(driver, hint.hold_s, self.key)
            else:
                await self.policy.scoped.hold(driver, hint.hold_s, self.key, scope)
        return hint

    def _signal(self, response: Any, hint: ServerHint | None) -> RateSignal:
        """What the answer says about the rate: a refusal for one scope only says nothing."""
        status, waited = status_of(response), self.reservation.delay > 0
        age_us = max(0, self._core.clock.now_us() - self._left_us)
        if hint is None:
            # A 429 without a hint was made by shapekit itself.
            is_success = status < _ILL and status != _REFUSED
            return RateSignal(age_us, is_refusal=False, is_success=is_success, waited=waited)
        is_about_all = hint.scope is None or self.target is None
        # With any other status, a hold may only mean that this was the last call of its window.
        refused = status == _REFUSED or (
            status >= _FAILED and hint.hold_s > 0 and (hint.remaining != 0 or status in _REFUSING)
        )
        stated, feedback = None, self.policy.feedback
        if feedback is not None and feedback.dialect != "auto" and hint.limit and hint.window_s:
            # If calls waited for longer than any hold, a wrong statement would not be corrected for hours.
            is_believed = hint.window_s / hint.limit <= feedback.max_hold_s
            stated = (hint.limit, round(hint.window_s * SECOND_US)) if is_believed else None
        return RateSignal(
            age_us,
            is_refusal=refused and is_about_all,
            is_success=not refused and status < _ILL,
            waited=waited,
            hold_us=round(hint.hold_s * SECOND_US),
            stated=stated,
        )


class Pending(Admission):
    """What `Policy.admit` returns: an admission that was not entered yet, and warns if it never is.

    A finalizer would slow down every call. So entering turns this into a plain `Admission`, which has none,
    by one assignment.
    """

    __slots__ = ()

    def __del__(self) -> None:
        if not hasattr(self, "_unheard"):
            return  # interrupted while it was made: no caller ever had it
        warnings.warn(
            f"the admission of {whose(self.key, self.policy.name)} was never entered, "
            "so that it shaped nothing; write: with policy.admit(): …, or async with",
            RuntimeWarning,
            stacklevel=2,
        )


class _Taken(Admission):
    """An admission that is entered already: its context only leaves."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self


def hint_of(
    admission: Admission, feedback: Feedback | None, response: Any, received_at: float
) -> ServerHint | None:
    """The hint in the response to an admitted call; None if it has none, or there is no feedback."""
    if feedback is None:
        return None
    status, headers = status_of(response), headers_of(response)
    if status is None or headers is None:
        fix = "pass a response of httpx, requests or aiohttp, or any object with .status_code and .headers"
        raise ConfigError("response", response, "has no status and headers", fix)
    return feedback.read(
        status,
        headers,
        sent_at=admission.sent_at,
        received_at=received_at,
        key=admission.key,
        path="" if admission.target is None else admission.target.path,
        body=body_of(response) if status >= _FAILED else None,
    )


def body_of(response: Any) -> Any:
    """The body of a response or of an SDK's error, if it was read already; None if it was not."""
    # SDK errors, then httpx and requests, then aiohttp keep a body that was read under these names. Their
    # public attributes would read it now.
    for name in ("body", "_content", "_body"):
        body = getattr(response, name, None)
        if isinstance(body, bytes | Mapping):
            return body
    return None


def status_of(response: Any) -> Any:
    """The status of a response, under either of the names that clients use; None if it has none."""
    status = getattr(response, "status_code", None)
    return getattr(response, "status", None) if status is None else status


def headers_of(response: Any) -> Any:
    """The raw header pairs if the client keeps them, else its headers object; None if there are none."""
    raw = getattr(response, "raw_headers", None)
    if raw is None:
        headers = getattr(response, "headers", None)
        raw = getattr(headers, "raw", headers)
    return raw


_KEPT = "keeps a permit a little longer"
