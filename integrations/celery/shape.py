"""How Celery tasks are shaped: the policy of a task, and the header with its slot."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from celery.exceptions import Ignore, Retry

from shapekit._adapters.tasks import calls_of, grace_of, policy_of, refusal_of, told_of
from shapekit._queue.reservation import Reservation, received, sent
from shapekit._runtime import forks
from shapekit._runtime.drivers import run
from shapekit._runtime.failures import ErrorsLogged
from shapekit.admission import Admission
from shapekit.decision import Decision
from shapekit.decorator import Calls
from shapekit.errors import ConfigError, RateLimitedError
from shapekit.feedback import Feedback, ServerHint
from shapekit.policy import Policy
from shapekit.rate import SECOND_US, Duration, duration_us, one_of, whole
from shapekit.stores import open_store
from shapekit.stores.base import Store

__all__ = ["Settings", "Shaped", "SlotHeader"]

ON_REJECT = ("fail", "reject", "retry")

SLOT_HEADER = "shapekit"
COST = "shape_cost"
"""The message headers that shapekit adds."""

_ADMISSION = "shapekit_admission"
"""The attribute of a running task's request that holds its admission."""


class Settings:
    """The settings in an app's configuration. Read on use, because the configuration may be loaded late."""

    def __init__(self, app: Any) -> None:
        conf = app.conf
        self.block_below_s = _seconds("shapekit_block_below", conf.get("shapekit_block_below", 0.5))
        """The longest wait for which a task stays in the worker."""
        self.most_waiting = whole("shapekit_most_waiting", conf.get("shapekit_most_waiting", 100))
        """How many tasks may wait in one worker."""
        visibility_s = (conf.broker_transport_options or {}).get("visibility_timeout", 3600)
        self.max_eta_s = _seconds("shapekit_max_eta", conf.get("shapekit_max_eta", visibility_s / 3))
        """The longest time that a message stays unacknowledged, or is sent ahead with an eta."""


_written = json.JSONEncoder(separators=(",", ":")).encode


def attempt_of(headers: Mapping[str, Any]) -> str:
    """The identity of one attempt at a task."""
    nesting = headers.get("replaced_task_nesting") or 0
    return f"{headers.get('id')}:{headers.get('retries') or 0}:{nesting}"


class SlotHeader(NamedTuple):
    """What a message carries: its slot; on its way into the pool, also when that came or its refusal."""

    attempt: str
    reservation: list[Any] | None = None
    slot: float | None = None
    """When the slot came, on this host's monotonic clock."""
    refusal: tuple[Any, ...] | None = None
    was_redelivered: bool = False
    """Whether the message had been delivered before when it got this slot."""

    @classmethod
    def of(cls, headers: Mapping[str, Any]) -> Self | None:
        """The slot in a message's headers; None if it is missing, malformed or of another attempt."""
        text = headers.get(SLOT_HEADER)
        if text is None:
            return None
        try:
            slot_header = cls(*json.loads(text))
        except (TypeError, ValueError):
            return None
        return slot_header if slot_header.attempt == attempt_of(headers) else None

    @classmethod
    def travelling(cls, headers: Mapping[str, Any], reservation: Reservation) -> Self:
        """A header for a message that waits elsewhere for its slot."""
        return cls(attempt_of(headers), sent(reservation), was_redelivered=bool(headers.get("redelivered")))

    def at(self, slot: float) -> Self:
        """The header of a message that enters the pool."""
        return self._replace(slot=slot)

    @classmethod
    def refused(cls, headers: Mapping[str, Any], error: RateLimitedError) -> Self:
        """A header for a message that enters the pool only to fail with this error."""
        return cls(attempt_of(headers), None, time.monotonic(), told_of(error))

    @property
    def error(self) -> RateLimitedError | None:
        """The error of a refusal."""
        return None if self.refusal is None else refusal_of(self.refusal)

    def text(self) -> str:
        """The slot as text for the header."""
        return _written(self)


class Shaped:
    """How one task is shaped: `task.shaped`. A running task finds the admission of its call here."""

    def __init__(self, task: Any, run: Callable[..., Any], policy: Callable[[], Policy], spec: Any) -> None:
        self._task = weakref.proxy(task)
        self._run = run
        self._policy = policy
        self._spec = spec
        self._lock = forks.lock()
        self._made: Calls | None = None
        self.on_reject: str = one_of("on_reject", spec.get("on_reject", "fail"), ON_REJECT)
        self._grace_s = _seconds("grace", spec["grace"]) if "grace" in spec else None

    # what a task may use

    @property
    def policy(self) -> Policy:
        """The policy of the task."""
        return self.calls.policy

    @property
    def admission(self) -> Admission:
        """The admission of the running call, with `key`, `delay`, `decision`, `settle` and `observe`."""
        admission: Admission | None = self._task.request.get(_ADMISSION)
        if admission is None:
            raise ConfigError("admission", None, "belongs to a running task", "ask for it inside of one")
        return admission

    def hold(self, length: Duration) -> float:
        """Hold the key of this call: no task leaves on it for `length`, in any worker."""
        return self.policy.shaper.hold(length, key=self.admission.key)

    def observe(self, response: Any) -> ServerHint | None:
        """Apply what a response says about the server's limits."""
        return self.admission.observe(response)

    def throttled(self, answer: Any) -> BaseException:
        """Hold the key after a refusal by the server; returns the exception to raise, which retries after the
        hold.

            raise self.shaped.throttled(response)

        Takes a response, an error that carries one, or a RateLimitedError. The retry counts towards
        `max_retries`, like any other.
        """
        if isinstance(answer, RateLimitedError):
            error, bounds = answer, self.policy.feedback or Feedback()
            if error.retry_after > 0 and self.policy.enforce:
                with self._errors_logged():
                    self.hold(min(error.retry_after, bounds.max_hold_s))
        else:
            response = getattr(answer, "response", None)
            if response is None:  # not by truth value: a requests response is false after a 429
                response = answer
            if not hasattr(response, "headers"):
                raise ConfigError(
                    "answer",
                    answer,
                    "is neither a response, nor an error with one, nor a RateLimitedError",
                    "pass one of these; for any other error there is self.retry",
                )
            hint = None
            with self._errors_logged():
                hint = self.observe(response)
            hold_us = 0 if hint is None else round(hint.hold_s * SECOND_US)
            error = RateLimitedError(
                Decision(False, 1, 1, 0, 0, hold_us), self.admission.key, self.policy.name
            )
        return self._retry(error, 0)

    # what goes on around it

    @property
    def calls(self) -> Calls:
        """The key and the cost that each call has under the policy."""
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = calls_of(self._policy(), self._spec, self._run)
        return self._made

    @property
    def grace_s(self) -> float:
        """How late a slot is still used: three quarters of one, but at least 10 ms, unless `grace` is set."""
        if self._grace_s is not None:
            return self._grace_s
        return grace_of(self.policy)

    def admission_of(self, headers: Mapping[str, Any] | None, args: Any, kwargs: Any) -> Admission:
        """The admission of one call, not yet entered."""
        told = None if headers is None else headers.get(COST)
        cost = None if told is None else whole(COST, told)
        # Most admissions use a slot taken elsewhere, and some use none.
        return self.calls.admission(args, kwargs, cost).unentered()

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the task's own `run` once its slot has come."""
        request = self._task.request
        admission = self.admission_of(request.headers, args, kwargs)
        # A task may also call its own `run`.
        is_called = request.called_directly or request.is_eager or request.get(_ADMISSION) is not None
        slot_header = None if is_called else SlotHeader.of(vars(request))
        if slot_header is None or slot_header.slot is None:
            admission.__enter__()
        elif slot_header.error is not None:
            raise self._refused(slot_header.error)
        elif (
            slot_header.reservation is None or (late_s := time.monotonic() - slot_header.slot) > self.grace_s
        ):
            admission.taken(self._another(admission))
        else:
            admission.taken(received(self.policy.shaper.core, slot_header.reservation), late_s)
        try:
            return self._called(admission, args, kwargs)
        except BaseException as error:
            why = error.exc if isinstance(error, Retry) and error.exc is not None else error
            admission.__exit__(type(why), why, why.__traceback__)
            raise

    def _errors_logged(self) -> ErrorsLogged:
        return ErrorsLogged(self.admission.key, "does not hear what its server says")

    def _called(self, admission: Admission, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = self._task.request
        outer = request.get(_ADMISSION)
        setattr(request, _ADMISSION, admission)
        try:
            return self._run(*args, **kwargs)
        except RateLimitedError as error:
            if self._repeats(error):
                raise self.throttled(error) from error
            raise
        finally:
            setattr(request, _ADMISSION, outer)

    def _repeats(self, error: RateLimitedError) -> bool:
        """Whether the task retries automatically after such an error."""
        said = (getattr(self._task, name, ()) for name in ("autoretry_for", "dont_autoretry_for"))
        some, but = map(tuple, said)
        return isinstance(error, some) and not isinstance(error, but)

    def _another(self, admission: Admission) -> Reservation:
        """Take another slot, because the first one has passed; wait for it here if it is near, else come back
        then.
        """
        shaper = self.policy.shaper
        reservation = shaper.reserve(admission.key, cost=admission.cost)
        if reservation.accepted and reservation.delay > Settings(self._task.app).block_below_s:
            self._come_back(reservation)
        try:
            run(shaper.core.leave, reservation)
        except RateLimitedError as error:
            raise self._refused(error) from None
        return reservation

    def _come_back(self, reservation: Reservation) -> None:
        """Send the same message once more, with its slot."""
        request = self._task.request
        headers = {
            **(request.headers or {}),
            SLOT_HEADER: SlotHeader.travelling(vars(request), reservation).text(),
        }
        try:
            self._task.signature_from_request(headers=headers, retries=request.retries).apply_async()
        except BaseException:
            reservation.cancel()
            raise
        raise Ignore

    def _refused(self, error: RateLimitedError) -> BaseException:
        return self._retry(error, error.retry_after) if self.on_reject == "retry" else error

    def _retry(self, error: RateLimitedError, countdown: float) -> BaseException:
        # An automatic retry may have its own bound.
        most = getattr(self._task, "retry_kwargs", {}).get("max_retries")
        retry: BaseException = self._task.retry(exc=error, countdown=countdown, max_retries=most, throw=False)
        return retry


def policy_from(spec: Mapping[str, Any], app: Any, name: str) -> Policy:
    """The policy with these keywords, on the app's store."""
    if spec.get("store") is None:
        spec = {**spec, "store": store_of(app)}
    return policy_of(spec, name=name)


_STORES: weakref.WeakKeyDictionary[Any, Store] = weakref.WeakKeyDictionary()
_MAKING = forks.lock()


def store_of(app: Any) -> Store:
    """The store that all workers of an app share: `app.conf.shapekit_store`, or the Redis of broker or
    results.
    """
    with _MAKING:
        if app not in _STORES:
            _STORES[app] = _store(app)
        return _STORES[app]


def _store(app: Any) -> Store:
    told = app.conf.get("shapekit_store")
    if told is not None:
        return open_store(told, field="app.conf.shapekit_store")[0]
    for url in (app.conf.broker_url, app.conf.result_backend):
        if isinstance(url, str) and url.startswith(("redis://", "rediss://")):
            return open_store(url)[0]
    raise ConfigError(
        "app.conf.shapekit_store",
        None,
        "is missing, and neither the broker nor the result backend is a Redis",
        'set it to a URL such as "redis://localhost", or to a Store',
    )


def _seconds(field: str, told: Duration) -> float:
    return duration_us(field, told, least=0) / SECOND_US
