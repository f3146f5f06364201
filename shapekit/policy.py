"""Policy: everything that one upstream allows, under one name.

Wrappers, decorators and workers speak to a policy alone: `admit` a call, let it leave, `settle` what
it turned out to cost.

Options that have several forms are brought into one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, Unpack

from shapekit._queue.scopes import ScopedSlots
from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit.admission import Admission, Pending
from shapekit.algorithms.inflight import MOST_PERMITS, Concurrency
from shapekit.algorithms.quota import Quota, QuotaUsage, quotas_of
from shapekit.config import CostSpec, PolicyOptions, RefundSpec, checked_options, fields_of
from shapekit.errors import ConfigError
from shapekit.events import Listener, Listening
from shapekit.keys import SCOPE, KeySpec, KeyTemplate
from shapekit.rate import AS_CONFIGURED, Duration, RateLike, boolean, whole
from shapekit.shaper import UNPACED, Outlook, Shaper, checked_rates, limits_shown
from shapekit.stores import StoreLike
from shapekit.stores.base import changed, legible, set_by

if TYPE_CHECKING:
    from shapekit._queue.inflight import Permits
    from shapekit.algorithms.overrides import Change, Override
    from shapekit.feedback import Feedback

__all__ = ["Policy"]


def quotas_from(quota: Quota | str | None, spread: bool) -> tuple[Quota, ...]:
    """The quota that was told, or none."""
    if boolean("spread", spread) and not isinstance(quota, str):
        bound, fix = "has no quota to spread", 'write quota="1_000_000/month"'
        if quota is not None:
            bound, fix = "conflicts with a Quota, which has its own spread=", "write Quota(…, spread=True)"
        raise ConfigError("spread", spread, bound, fix)
    if quota is None:
        return ()
    if isinstance(quota, str):
        try:
            return (Quota(quota, spread=spread),)
        except ConfigError as error:
            raise error.within("quota") from None
    if not isinstance(quota, Quota):
        raise ConfigError("quota", quota, "is not a quota", 'write "1_000_000/month", or a Quota')
    return (quota,)


def concurrency_from(concurrency: Concurrency | int | None) -> Concurrency | None:
    """How many calls may be in flight, and for how long a worker is believed in; None if nothing was told."""
    if concurrency is None or isinstance(concurrency, Concurrency):
        return concurrency
    return Concurrency(whole("concurrency", concurrency, most=MOST_PERMITS))


def checked_key(key: KeySpec) -> str | KeyTemplate | Callable[..., str]:
    """A key that never changes, a parsed template, or the callable."""
    if isinstance(key, str):
        template = KeyTemplate(key)
        return template if template.fields else template({})
    if callable(key):
        return key
    raise ConfigError("key", key, "is neither text nor callable", 'write "{user_id}", or a callable')


def checked_cost(cost: CostSpec) -> int | Callable[..., int]:
    """A whole number of units, or the callable."""
    if callable(cost):
        return cost
    return whole("cost", cost)


def never_counted(refund_on: RefundSpec | None) -> Callable[[BaseException], bool] | None:
    """Tells the errors after which a call never counted; None if there are none."""
    if refund_on is None:
        return None
    kinds = refund_on if isinstance(refund_on, tuple) else (refund_on,)
    if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        return partial(_is_one_of, kinds)
    if callable(refund_on) and not isinstance(refund_on, type):
        return refund_on
    raise ConfigError(
        "refund_on", refund_on, "is neither exceptions nor a predicate", "write refund_on=ConnectionError"
    )


def checked_feedback(feedback: Any) -> Any:
    """What reads answers, as it was told."""
    if feedback is None or feedback == "hold" or callable(feedback):
        return feedback
    from shapekit.feedback import Feedback  # noqa: PLC0415 - code that has one has loaded it

    if isinstance(feedback, Feedback):
        return feedback
    raise ConfigError(
        "feedback", feedback, "is not a kind of feedback", 'write "hold", None, or Feedback("github")'
    )


def _is_one_of(kinds: tuple[Any, ...], error: BaseException) -> bool:
    return isinstance(error, kinds)


class Policy:
    """All limits of one API, under one name: rates, quotas, calls in flight.

        >>> from shapekit import Policy
        >>> stripe = Policy("25/s", name="stripe", max_wait="2s", quota="1_000_000/month")
        >>> with stripe.admit() as admission:
        ...     admission.delay
        0.0

    The rate, the gates and the quota bind together: a call leaves when all of them let it, and is
    charged to all or to none.

    - `quota`: a `Quota`, or text such as `"1_000_000/month"`; with `spread=True` what is left of that is
      spent evenly over what is left of its period.
    - `key`: what the limit is counted for: text, a template over the arguments of a call such as
      `"{user_id}"`, or a callable that gets these arguments and returns text.
    - `cost`: what a call costs: a number, or a callable that gets the arguments of the call.
    - `enforce=False`: every call leaves at once, and its admission says what would have happened.
    - `refund_on`: exceptions (or a predicate) after which a call does not count.
    - `feedback="hold"`: answers that are passed to `Admission.observe` may hold the key for all workers: a
      429, a `Retry-After`, nothing remaining. None ignores answers; a `Feedback` sets the details; a callable
      reads an `Answer` itself.
    - `adaptive`: instead of a rate, an `Adaptive`: its rate is found from the server's answers.
    - `concurrency`: how many calls may be in flight at once, over all workers; `Concurrency` sets the lease.
    - the rest as for `Shaper`: `burst`, `pace`, `gates`, `max_wait`, `headroom`, `prefetch`, `store`, `clock`
      and `name`.
    """

    def __init__(self, rate: RateLike | None = None, **options: Unpack[PolicyOptions]) -> None:
        said = checked_options("Policy", options)
        key, cost = said.pop("key", "default"), said.pop("cost", 1)
        quotas = quotas_from(said.pop("quota", None), said.pop("spread", False))
        in_flight = concurrency_from(said.pop("concurrency", None))
        enforce, refund_on = said.pop("enforce", True), said.pop("refund_on", None)
        feedback = said.pop("feedback", "hold")
        gates, adaptive = said.pop("gates", ()), said.get("adaptive")
        if rate is not None:
            checked_rates(rate, "Policy")
        elif adaptive is None and in_flight is not None:
            rate = UNPACED
        elif adaptive is None and not gates and not quotas:
            raise ConfigError("rate", rate, "is missing", 'write Policy("10/s")')
        # The rest is the shaper's.
        self.shaper = Shaper(rate, gates=(*gates, *quotas) if isinstance(gates, Sequence) else gates, **said)
        """The queue under the policy."""
        self.name = self.shaper.name
        """The name of the limit, which events, metrics and the keys on the store bear."""
        self.scoped = ScopedSlots(self.shaper.core)
        self.permits: Permits | None = None
        if in_flight is not None:
            from shapekit._queue.inflight import Permits  # noqa: PLC0415 - only who needs permits loads them

            core = self.shaper.core
            self.permits = Permits(self.name, core.store, in_flight, core.sleepers)
        self.key = checked_key(key)
        """The key, template or callable that was given."""
        self.cost = checked_cost(cost)
        """The cost or callable that was given."""
        self.enforce = boolean("enforce", enforce)
        """Whether calls wait and are refused; false where they are only measured."""
        self.refund_on = never_counted(refund_on)
        """Says of an exception whether the call never counted; None without `refund_on`."""
        self._feedback_spec = checked_feedback(feedback)
        if adaptive is not None and feedback is None:
            fix = 'leave it out, or name a dialect: Feedback("ietf")'
            raise ConfigError("feedback", None, "leaves adaptive= without answers", fix)

    @classmethod
    def from_dict(
        cls, fields: Mapping[str, Any], *, name: str | None = None, store: StoreLike | None = None
    ) -> Self:
        """A policy from plain values, as a configuration file holds them.

            >>> gates = [{"strategy": "gcra", "rate": "100/min"}]
            >>> Policy.from_dict({"rate": "10/s", "gates": gates}, name="api")  # doctest: +ELLIPSIS
            Policy('10/s', burst=1, pace='smooth', gates=(GCRA(...burst=100),), name='api')

        A strategy is a table with its name under `strategy`, and what it takes.
        """
        named = {"name": "policy" if name is None else name}
        told: dict[str, Any] = {**named, **fields_of(fields), "store": store}
        return cls(**told)

    @classmethod
    def from_toml(cls, path: str | PathLike[str], name: str, *, store: StoreLike | None = None) -> Self:
        """The policy in the table `[name]` of a TOML file; errors name file, table and field."""
        import tomllib  # noqa: PLC0415 - only who reads a file loads it

        if not isinstance(path, str | PathLike):
            raise ConfigError("path", path, "is not a path", 'pass one such as "limits.toml"')
        try:
            with open(path, "rb") as file:
                tables = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError("path", str(path), f"is not TOML ({error!s:.200})", "mend the file") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error  # the path stands in the error already
            raise ConfigError("path", str(path), f"cannot be read ({reason})", "name a TOML file") from None
        table = tables.get(name) if isinstance(name, str) else None
        if not isinstance(table, dict):
            known = ", ".join(key for key, value in tables.items() if isinstance(value, dict)) or "none"
            raise ConfigError(
                "name", name, f"is not a table of {path}", f"write [{name}], or use one of: {known:.200}"
            )
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
        """A context that is entered when the call may leave, and yields its `Admission`.

        `key` and `cost` default to the policy's own, if those do not depend on the call. A context that is
        never entered does not wait, and emits a RuntimeWarning.
        """
        waits: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        if max_wait is not AS_CONFIGURED:
            waits["max_wait"] = max_wait
        # Every call comes by: what is given, or always the same, is not asked for.
        whose = self.key_of(None) if key is None else key
        if cost is None:
            own = self.cost
            cost = own if isinstance(own, int) else self.cost_of(None)
        if isinstance(whose, str) and SCOPE in whose:
            raise ConfigError("key", whose, f"contains {SCOPE!r}, by which scopes are held", "leave that out")
        return Pending(self, whose, cost, waits)

    def aadmit(
        self,
        key: str | None = None,
        *,
        cost: int | None = None,
        max_wait: Duration | None = AS_CONFIGURED,
        timeout: Duration | None = None,
    ) -> Admission:
        """`admit`, for `async with`."""
        return self.admit(key, cost=cost, max_wait=max_wait, timeout=timeout)

    @cached_property
    def feedback(self) -> Feedback | None:
        """What reads the server's answers; None if nothing does."""
        from shapekit.feedback import Feedback  # noqa: PLC0415 - who never admits need not load the dialects

        spec = self._feedback_spec
        if spec is None or isinstance(spec, Feedback):
            return spec
        return Feedback() if isinstance(spec, str) else Feedback(spec)

    def forecast(self, calls: int = 1, *, key: str | None = None, cost: int | None = None) -> Outlook:
        """When `calls` more calls will have left, if they came now and no others did."""
        return self.shaper.forecast(calls, key=self.key_of(key), cost=self._foreseen(cost))

    async def aforecast(self, calls: int = 1, *, key: str | None = None, cost: int | None = None) -> Outlook:
        """`forecast`, awaitable."""
        return await self.shaper.aforecast(calls, key=self.key_of(key), cost=self._foreseen(cost))

    def listen(self, listener: Listener) -> Listening:
        """Add a listener for the events of this policy; closing the returned `Listening` removes it."""
        return self.shaper.listen(listener)

    def quotas(self, key: str | None = None) -> list[QuotaUsage]:
        """How much of each quota is used, and what is left of it, for a key. Consumes nothing.

        Those inside composites count too. While the key is held, they are seen as when the hold ends.

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
        core, whose = self.shaper.core, self.key_of(key)
        core.check(whose, 1)
        if not core.budgets.has_quotas:
            return []
        with core.reporter.watching(whose):
            looked = await driver.ask(core.look, whose)
            return quotas_of(core.queue_of(whose), *looked)

    def configure(self, rate: str | None = None, **change: Unpack[Change]) -> Override:
        """Set limits for all processes that share the store, instead of those in their code.

            >>> stripe = Policy("5/s", name="stripe")
            >>> stripe.configure("20/s", reason="sale").words
            'rate 20/s'

        They apply from each process's next decision on, and waiting calls move. Limits that are not given
        stay as in the code. The override ends with `unconfigure`, or at `until`.

        - `key`: only for this key; `gold-*` for all keys that begin with that. One override applies to a key:
          its own, or else that of the longest beginning, or else the policy's.
        - `burst`, `concurrency`, `headroom`: as for the policy.
        - `quota`: other limits for quotas, such as `"2_000_000/month"`. Used units stay used.
        - `state`: `off` for no limit at all, `held` to let no call leave until the override ends.
        - `reason`: why, shown with the override.
        - `until`: a `datetime`, or epoch seconds.
        """
        return run(self._configure, rate, change)

    async def aconfigure(self, rate: str | None = None, **change: Unpack[Change]) -> Override:
        """`configure`, awaitable."""
        return await self._configure(TASKS, rate, change)

    async def _configure(self, driver: Driver, rate: str | None, change: Change) -> Override:
        from shapekit.algorithms.overrides import effective, override_of, placed  # noqa: PLC0415 - operators

        store = self.shaper.core.store
        now_us = store.clock.now_us()
        override = override_of(rate, change, set_by(), now_us)
        if override.is_over(now_us):
            fix = f"name an instant after the present, which is {override.set_at:.0f} on the store's clock"
            raise ConfigError("until", change.get("until"), "has passed already", fix)
        effective(self.shaper.core.queue, override)
        if override.concurrency is not None and self.permits is None:
            bound, fix = (
                "needs a policy with concurrency=",
                "set concurrency= in the code",
            )
            raise ConfigError("concurrency", override.concurrency, bound, fix)
        await changed(driver, store, self.name, placed(override))
        return override

    def configured(self) -> list[Override]:
        """The overrides in force, whichever process has set them."""
        return run(self._configured)

    async def aconfigured(self) -> list[Override]:
        """`configured`, awaitable."""
        return await self._configured(TASKS)

    async def _configured(self, driver: Driver) -> list[Override]:
        store = self.shaper.core.store
        stored = await driver.ask(Twin(store.read_overrides, store.aread_overrides), self.name)
        return list(legible(store, stored))

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
            return key
        if isinstance(self.key, str):
            return self.key
        raise ConfigError(
            "key", key, "depends on the values of a call, and none are given", 'pass admit(key="…")'
        )

    def cost_of(self, cost: int | None) -> int:
        """The given cost, or the policy's own."""
        if cost is not None:
            return cost
        if isinstance(self.cost, int):
            return self.cost
        raise ConfigError(
            "cost", cost, "depends on the values of a call, and none are given", "pass admit(cost=…)"
        )

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
