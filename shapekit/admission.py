"""Admission: one call's leave to go, from a policy.

Where the policy also bounds how many calls are in flight: first the permit, then the slot, since a slot that
had to wait for a permit would pass unused. A call that gets no slot, or does not stay for it, gives its
permit back.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shapekit._queue.adaptive import RateSignal
from shapekit._runtime.drivers import TASKS, Driver, Twin, run
from shapekit._runtime.process import SWITCH, ErrorsLogged
from shapekit.algorithms.base import NEVER_US
from shapekit.algorithms.queue.slots import Grant
from shapekit.decision import Decision
from shapekit.errors import ConfigError, CostExceedsLimitError, QueueFullError, after_waiting, whose
from shapekit.rate import SECOND_US, max_wait_us, timeout_us, whole
from shapekit.shaper import Reservation

if TYPE_CHECKING:
    from shapekit._queue.inflight import Permit, Permits
    from shapekit.feedback import Feedback, ServerHint
    from shapekit.keys import Target
    from shapekit.policy import Policy
    from shapekit.shaper import Core

__all__ = ["Admission", "Pending", "body_of", "hint_of"]

_REFUSED, _FAILED, _ILL = 429, 400, 500


class Admission:
    """One call under a policy: `with` or `async with` waits until it may leave.

    An admission that is made with a reservation is entered already, and its call leaves now.
    """

    __slots__ = (
        *("_is_enclosing", "_permit", "_reservation", "_unheard", "_waits"),
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
        """Where the call goes, if that is known: then a hold may be for the part of the server there."""
        self.sent_at = 0.0 if reservation is None else policy.shaper.core.clock.wall_us() / SECOND_US
        """When the call left, in epoch seconds on the clock of the store; 0 before."""
        self._reservation = reservation
        self._unheard = False
        """Whether something was said of the cost to which no answer came: it may have counted."""

    @property
    def delay(self) -> float:
        """The seconds that the call was delayed, or would have been with `enforce=True`."""
        return self.reservation.delay

    @property
    def decision(self) -> Decision:
        """The decision, as a gate gives it. It is a denial only if the policy has `enforce=False`."""
        return self.reservation.decision

    @property
    def reservation(self) -> Reservation:
        """The reservation of the call's slot."""
        if self._reservation is None:
            raise ConfigError("admission", None, "was not entered", "write: with policy.admit() as admission")
        return self._reservation

    def taken(self, reservation: Reservation, late: float | None = None) -> Self:
        """Entered by a slot that was taken elsewhere, and has come.

        `late`: by how many seconds ago, where it was not said yet that the call leaves.
        """
        self.__class__ = Admission  # type: ignore[assignment]
        self._reservation = reservation
        self.sent_at = self._core.clock.wall_us() / SECOND_US
        if late is not None and SWITCH.loud:
            # Holds that came between are known by the clocks alone.
            delay = max(reservation.delay, self.sent_at - (reservation.departs_at - reservation.delay))
            self._core.reporter.departed(
                reservation.key, reservation.cost, round(delay * SECOND_US), round(late * SECOND_US)
            )
        return self

    def settle(self, actual: int) -> bool:
        """Correct the cost of the call once it is known: the difference is charged, or given back.

        What is given back goes to calls that have no slot yet; waiting calls keep theirs. May
        be repeated as more becomes known: the last cost counts.
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
        """Said where a call is only looked at, or what it takes came otherwise: then nothing warns of it."""
        self.__class__ = Admission  # type: ignore[assignment]
        return self

    def enclosing(self) -> Self:
        """Said where the task that enters is the one that leaves, whatever it calls in between."""
        self._is_enclosing = True
        return self

    def leave(self) -> None:
        """End the call, which gives back its permit, if it has one. Leaving the context does the same.

        For callers that enter without a `with`, and know when the call ends.
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

    def observe(self, response: Any) -> ServerHint | None:
        """Read what an answer says about the server's limits, and hold the key if it asks for that.

        If the answer names a scope and the call's `target` is known, only that scope is held.

        Takes a response of httpx, requests or aiohttp, or any object with a status and headers. A body counts
        only if it was read before. Returns the hint in the answer, or None if there is none or the policy has
        no feedback.
        """
        return run(self._observe, response)

    async def aobserve(self, response: Any) -> ServerHint | None:
        """`observe`, awaitable."""
        return await self._observe(TASKS, response)

    def __enter__(self) -> Self:
        if self._reservation is not None:
            raise self._entered_before()
        self.__class__ = Admission  # type: ignore[assignment]  # and no longer a `Pending`
        # As of most calls: there is a slot to wait for, and nothing else. They take no detour, and an empty
        # `**` would be one.
        policy = self.policy
        if (
            policy.enforce
            and policy.permits is None
            and (self.target is None or not policy.scoped.scopes.any_known)
        ):
            schedule, waits = policy.shaper.schedule, self._waits
            self._reservation = (
                schedule(self.key, cost=self.cost, **waits) if waits else schedule(self.key, cost=self.cost)
            )
            self.sent_at = policy.shaper.core.clock.wall_us() / SECOND_US
        else:
            run(self._enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self._permit is not None:
            run(self._exit, error)

    async def __aenter__(self) -> Self:
        if self._reservation is not None:
            raise self._entered_before()
        self.__class__ = Admission  # type: ignore[assignment]
        policy = self.policy
        if (
            policy.enforce
            and policy.permits is None
            and (self.target is None or not policy.scoped.scopes.any_known)
        ):
            schedule, waits = policy.shaper.aschedule, self._waits
            self._reservation = await (
                schedule(self.key, cost=self.cost, **waits) if waits else schedule(self.key, cost=self.cost)
            )
            self.sent_at = policy.shaper.core.clock.wall_us() / SECOND_US
        else:
            await self._enter(TASKS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self._permit is not None:
            await self._exit(TASKS, error)

    @property
    def _core(self) -> Core:
        return self.policy.shaper.core

    # entering

    def _entered_before(self) -> ConfigError:
        return ConfigError("admission", self.key, "was entered before", "admit each call anew")

    async def _enter(self, driver: Driver) -> None:
        permits = None if SWITCH.is_off else self.policy.permits
        if not self.policy.enforce:
            await self._measure(driver, permits)
        elif permits is None:
            self._reservation = await self._scheduled(driver, self._waits)
        else:
            await self._enter_with_permit(driver, permits)
        self.sent_at = self._core.clock.wall_us() / SECOND_US

    async def _enter_with_permit(self, driver: Driver, permits: Permits) -> None:
        """How long to wait is for the permit and the slot together."""
        self._core.check(self.key, self.cost)
        bound_us, gives_up_us = self._bound_us(), timeout_us(self._waits.get("timeout"))
        try:
            self._permit = permit = await permits.take(driver, self.key, bound_us, gives_up_us)
        except BaseException as error:
            self._core.reporter.ended(self.key, self.cost, error, had_slot=False, returned=False)
            raise
        waited_us, waits = permit.waited_us, {**self._waits}
        try:
            if waited_us and bound_us is not None:
                waits["max_wait"] = timedelta(microseconds=max(0, bound_us - waited_us))
            if waited_us and gives_up_us is not None:
                waits["timeout"] = timedelta(microseconds=max(0, gives_up_us - waited_us))
            reservation = await self._scheduled(driver, waits)
        except BaseException as error:
            await driver.given_back(error, partial(self._leave, driver))
            told = _told(error, waited_us, bound_us)
            if told is error:
                raise
            raise told.with_traceback(error.__traceback__) from error.__cause__
        permits.has_begun(permit, is_enclosing=self._is_enclosing)
        self._reservation = reservation.after_waiting(waited_us) if waited_us else reservation

    async def _scheduled(self, driver: Driver, waits: Mapping[str, Any]) -> Reservation:
        if self.target is not None and self.policy.scoped.scopes.any_known:
            return await self.policy.scoped.schedule(driver, self.key, self.target, self.cost, **waits)
        shaper = self.policy.shaper
        schedule = Twin(shaper.schedule, shaper.aschedule)
        reservation: Reservation = await driver.ask(schedule, self.key, cost=self.cost, **waits)
        return reservation

    async def _measure(self, driver: Driver, permits: Permits | None) -> None:
        """The call passes at once; it holds a permit if there is one, and if not, that is what is told."""
        timeout_us(self._waits.get("timeout"))
        try:
            self._core.check(self.key, self.cost)
            bound_us, code = self._bound_us(), None
            if permits is not None:
                try:
                    with self._core.reporter.watching(self.key):
                        self._permit = await permits.take(driver, self.key, 0)
                except QueueFullError:
                    code = QueueFullError.code
            self._reservation = await self._core.measure(driver, self.key, self.cost, bound_us, code=code)
        except CostExceedsLimitError as error:
            never = Decision(False, error.limit, 0, 0, 0, NEVER_US)
            refused = Grant.refused(NEVER_US, 0, held=False, told=never, cost=self.cost)
            self._core.reporter.measured(self.key, self.cost, math.inf, error.code)
            self._reservation = Reservation(self._core, self.key, refused)

    def _bound_us(self) -> int | None:
        """The longest wait that is asked with."""
        return max_wait_us(self._waits["max_wait"]) if "max_wait" in self._waits else self._core.max_wait_us

    # leaving

    async def _exit(self, driver: Driver, error: BaseException | None) -> None:
        if isinstance(error, GeneratorExit):
            # A generator may be ended by the collector, in the midst of anything: no store is asked, and the
            # permit that is dropped here is given back by another thread.
            self._permit = None
            return
        try:
            if error is not None and self.policy.refund_on is not None:
                with ErrorsLogged(self.key, "keeps what it was charged"):
                    if self.policy.refund_on(error):
                        with driver.shielded():
                            await self._settle(driver, 0)
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

    # what is heard of the call

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
            # It says nothing of the rate.
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
        scope = self._learned(hint)
        if hint.hold_s > 0:
            if scope is None:
                await core.hold(driver, hint.hold_s, self.key)
            else:
                await self.policy.scoped.hold(driver, hint.hold_s, self.key, scope)
        return hint

    def _learned(self, hint: ServerHint) -> str | None:
        """The scope that the answer was about, of which its target is from now on; None if it named none."""
        if hint.scope is not None and self.target is not None:
            self.policy.scoped.scopes.learn(self.key, self.target, hint.scope)
            return hint.scope
        return None

    def _signal(self, response: Any, hint: ServerHint | None) -> RateSignal:
        """What the answer says of the rate: a refusal that is about a part of the server says nothing."""
        status = _status_of(response)
        age_us = max(0, round((self._core.clock.wall_us() / SECOND_US - self.sent_at) * SECOND_US))
        waited = self.reservation.delay > 0
        if hint is None:
            return RateSignal(age_us, is_refusal=False, is_success=status < _ILL, waited=waited)
        is_about_all = hint.scope is None or self.target is None
        refused = status == _REFUSED or (status >= _FAILED and hint.hold_s > 0)
        stated = None
        if hint.limit and hint.window_s and getattr(self.policy.feedback, "dialect", "auto") != "auto":
            stated = hint.limit, round(hint.window_s * SECOND_US)
        return RateSignal(
            age_us,
            is_refusal=refused and is_about_all,
            is_success=not refused and status < _ILL,
            waited=waited,
            hold_us=round(hint.hold_s * SECOND_US),
            stated=stated,
        )


class Pending(Admission):
    """What `Policy.admit` returns: an admission that was not entered yet, and says so if it never is.

    A finalizer would cost each call. Entering makes this a plain `Admission`, which has none: that is one
    assignment, and less than what the finalizer of an admission that was entered would take.
    """

    __slots__ = ()

    def __del__(self) -> None:
        if not hasattr(self, "_unheard"):
            return  # interrupted while it was made: no code ever had it
        warnings.warn(
            f"the admission of {whose(self.key, self.policy.name)} was never entered, "
            "so that it shaped nothing; write: with policy.admit(): …, or async with",
            RuntimeWarning,
            stacklevel=2,
        )


def hint_of(
    admission: Admission, feedback: Feedback | None, response: Any, received_at: float
) -> ServerHint | None:
    """What the answer to an admitted call says; None if it says nothing, or nothing reads it."""
    if feedback is None:
        return None
    try:
        headers = getattr(response, "raw_headers", None)
        if headers is None:
            headers = getattr(response.headers, "raw", response.headers)
        status = _status_of(response)
    except AttributeError as error:
        fix = "pass a response of httpx, requests or aiohttp, or any object with .status_code and .headers"
        raise ConfigError("response", response, "has no status and headers", fix) from error
    return feedback.read(
        status,
        headers,
        sent_at=admission.sent_at,
        received_at=received_at,
        key=admission.key,
        body=body_of(response) if status >= _FAILED else None,
    )


def body_of(response: Any) -> Any:
    """The body of a response, or of an SDK's error, that was read already; None if it was not."""
    # httpx and requests, then aiohttp, keep a body that was read under these names. By their public ones it
    # would be read now.
    for name in ("body", "_content", "_body"):
        body = getattr(response, name, None)
        if isinstance(body, bytes | Mapping):
            return body
    return None


def _status_of(response: Any) -> int:
    status: int | None = getattr(response, "status_code", None)
    return response.status if status is None else status


_KEPT = "keeps a permit a little longer"


def _told(error: BaseException, waited_us: int, bound_us: int | None) -> BaseException:
    """A refusal of a slot, in terms of the whole wait."""
    if not isinstance(error, QueueFullError) or not waited_us or bound_us is None:
        return error
    return after_waiting(error, waited_us / SECOND_US, bound_us / SECOND_US)
