"""Celery: shapes tasks under one rate for all workers. A waiting task takes up no slot of the pool.

    @app.task(base=ShapedTask, shape={"rate": "10/s", "key": "{account}"})
    def sync(account): ...

    shape_app(app, {"billing.*": policy})       # tasks that you do not own

A task whose slot has come goes to the pool. A task whose slot is less than half a second away waits in the
worker, outside the pool. Any other task is parked in Redis together with its slot, and comes back shortly
before the slot: until then it occupies neither the pool nor a worker's memory. The slot travels in a header
of the message.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import logging
import math
import socket
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self, TypeGuard
from urllib.parse import parse_qsl, urlencode

from shapekit import errors

try:
    from celery import Task, uuid
    from celery.exceptions import Ignore, Retry
    from celery.signals import before_task_publish
    from kombu.entity import Queue
    from kombu.exceptions import OperationalError, SerializationError
except ImportError as error:
    raise errors.missing("ShapedTask", "celery") from error

from shapekit._adapters.http import CallOutcome, hearing
from shapekit._adapters.tasks import (
    Shape,
    calls_of,
    check_without_store,
    checked_shape,
    give_back,
    grace_of,
    policy_of,
    refusal_of,
    told_of,
)
from shapekit._runtime import process
from shapekit._runtime.drivers import run
from shapekit.decision import Decision
from shapekit.decorator import Calls
from shapekit.errors import UNSHOWN, ConfigError, RateLimitedError, StoreUnavailableError
from shapekit.feedback import Feedback, ServerHint
from shapekit.policy import Admission, Policy
from shapekit.rate import SECOND_US, Duration, duration_us, one_of, whole
from shapekit.shaper import Core, Reservation, received, sent
from shapekit.stores import open_store
from shapekit.stores.base import Store

__all__ = ["Shaped", "ShapedTask", "shape_app", "shape_publish"]

ON_REJECT = ("fail", "reject", "retry")

SLOT_HEADER = "shapekit"
AHEAD_HEADER = "shapekit_ahead"
COST = "shape_cost"
"""The message headers that shapekit adds."""

_ADMISSION = "shapekit_admission"
"""The attribute of a running task's request that holds its admission."""
_SENDING = "shapekit_sending"
"""The option of a published message that holds its `_Sending`."""

log = logging.getLogger("shapekit.celery")


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


def version_of(core: Core) -> str:
    """A text that changes whenever the limits of a name do, including overrides that end by themselves."""
    known = core.store.settings(core.name).known
    return f"{known.stored.version} {len(known.overrides)}" if known.stored.version else ""


class SlotHeader(NamedTuple):
    """What a message carries: its slot; on its way into the pool, also when the slot came, or its refusal."""

    attempt: str
    reservation: list[Any] | None = None
    slot: float | None = None
    """When the slot came, on this host's monotonic clock."""
    refusal: tuple[Any, ...] | None = None
    was_redelivered: bool = False
    """Whether the message had been delivered before when it got this slot."""
    serializer: str | None = None
    """The serializer of the message's body, which Celery does not tell a task in the pool."""
    is_for_all: bool = False
    """Whether each worker got a copy. If one of them sent it again, no worker would get it."""
    version: str | None = None
    """The version of the limits that the slot is from."""
    queue: str | None = None
    """The queue that the message came from, if the broker tells: other queues may have its routing key."""

    @classmethod
    def of(cls, headers: Mapping[str, Any]) -> Self | None:
        """The slot in a message's headers; None if it is missing, malformed or from another attempt."""
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
        return cls(
            attempt_of(headers),
            sent(reservation),
            was_redelivered=bool(headers.get("redelivered")),
            version=version_of(reservation.core),
        )

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
    """The shaping of one task, as `task.shaped`. A running task finds the admission of its call here."""

    def __init__(self, task: Any, run: Callable[..., Any], policy: Callable[[], Policy], spec: Any) -> None:
        self._task = weakref.proxy(task)
        self._run = run
        self._policy = policy
        self._spec = spec
        self._lock = process.lock()
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
        """The admission of the running call: its `key`, `delay`, `decision`, `settle` and `observe`."""
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

        Takes a response, an error that carries one, or a RateLimitedError. A 429 that shapekit itself has
        made (`on_reject="respond"`) does not hold the key: the task retries after its `Retry-After`. The
        retry counts towards `max_retries`, like any other.
        """
        countdown, max_hold_s = 0.0, (self.policy.feedback or Feedback()).max_hold_s
        if isinstance(answer, RateLimitedError):
            error = answer
            if error.retry_after > 0 and self.policy.enforce:
                with hearing(self.admission):
                    self.hold(min(error.retry_after, max_hold_s))
        else:
            outcome = CallOutcome(failure=answer)
            response, refusal = outcome.answer, outcome.refusal
            if response is None:
                bound = "is neither a response, nor an error with one, nor a RateLimitedError"
                fix = "pass one of these; for any other error there is self.retry"
                raise ConfigError("answer", answer, bound, fix)
            if refusal is not None:
                wait_s = countdown = min(refusal.retry_after, max_hold_s)
            else:
                hint = None
                with hearing(self.admission):
                    hint = self.observe(response)
                wait_s = 0.0 if hint is None else hint.hold_s
            error = RateLimitedError(
                Decision(False, 1, 1, 0, 0, round(wait_s * SECOND_US)), self.admission.key, self.policy.name
            )
        return self._retry(error, countdown)

    # around the task

    @property
    def calls(self) -> Calls:
        """Computes the key and the cost of each call under the policy."""
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = calls_of(self._policy(), self._spec, self._run)
        return self._made

    @property
    def grace_s(self) -> float:
        """How late a slot may still be used: `grace`, or three quarters of a slot, but at least 10 ms."""
        if self._grace_s is None:
            self._grace_s = grace_of(self.policy)
        return self._grace_s

    def admission_of(self, headers: Mapping[str, Any] | None, args: Any, kwargs: Any) -> Admission:
        """The admission of one call, not yet entered."""
        header = None if headers is None else headers.get(COST)
        cost = None if header is None else whole(COST, header)
        # Unentered: most of them use a slot that was taken elsewhere, and some use none.
        return self.calls.admission(args, kwargs, cost).unentered()

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the task's own `run` once its slot has come."""
        request = self._task.request
        admission = self.admission_of(request.headers, args, kwargs)
        # A task may also call its own `run`.
        is_called = request.called_directly or request.is_eager or request.get(_ADMISSION) is not None
        slot_header = None if is_called else SlotHeader.of(vars(request))
        if slot_header is not None and slot_header.error is not None:
            raise self._refused(slot_header.error)
        if slot_header is None or slot_header.slot is None or slot_header.reservation is None:
            admission.__enter__()
        else:
            reservation = received(self.policy.shaper.core, slot_header.reservation)
            late_s = time.monotonic() - slot_header.slot
            if late_s < 0:
                self._sleep(reservation, -late_s)  # the task missed its slot, and this is the next one
            if late_s > self.grace_s:
                admission.taken(*self._caught_up(admission, reservation))
            else:
                admission.taken(reservation, max(0.0, late_s))
        try:
            return self._called(admission, args, kwargs)
        except BaseException as error:
            why = error.exc if isinstance(error, Retry) and error.exc is not None else error
            admission.__exit__(type(why), why, why.__traceback__)
            raise

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
        options = (getattr(self._task, name, ()) for name in ("autoretry_for", "dont_autoretry_for"))
        some, but = map(tuple, options)
        return isinstance(error, some) and not isinstance(error, but)

    def _caught_up(self, admission: Admission, slot: Reservation | None) -> tuple[Reservation, float]:
        """Wait for the slot of a late call, or for another one if its own has passed; returns the slot, and
        how late it is. If the slot is not near, the message is sent again instead.
        """
        shaper, stays = self.policy.shaper, False
        try:
            while True:
                coming = None if slot is None else run(shaper.core.coming, slot, self.grace_s)
                if coming is None:
                    if slot is not None:
                        # Unused, but a quota or a window would go on counting it.
                        shaper.settle(slot, 0)
                    slot = shaper.reserve(admission.key, cost=admission.cost)
                    if not slot:
                        run(shaper.core.leave, slot)
                    continue
                slot, remaining_s, has_moved = coming
                if remaining_s > Settings(self._task.app).block_below_s and not (has_moved or stays):
                    # If this is interrupted, the message may have been sent with the slot.
                    leaving, slot, stays = slot, None, True
                    slot = self._come_back(leaving)
                    continue
                if remaining_s > 0:
                    time.sleep(remaining_s)
                if remaining_s <= 0 or has_moved:
                    return slot, max(0.0, -remaining_s)
        except StoreUnavailableError:
            # The store is gone: a worker waits for it, outside the pool.
            self._come_back(slot)
            raise
        except RateLimitedError as error:
            raise self._refused(error) from None
        except Ignore:
            raise  # the message was sent again, together with its slot
        except BaseException:
            if slot:
                run(give_back, slot)
            raise

    def _sleep(self, reservation: Reservation, length_s: float) -> None:
        """Sleep until a slot that is near; if the task is interrupted, the slot is given back."""
        try:
            time.sleep(length_s)
        except BaseException:
            run(give_back, reservation)
            raise

    def _come_back(self, reservation: Reservation | None) -> Reservation | None:
        """Send the same message again, with its slot; a message for all workers stays here.

        A call that stays goes on with the slot that this returns: None if the message may have been sent.
        """
        request = self._task.request
        fields = vars(request)
        carried = SlotHeader.of(fields)
        if carried is not None and carried.is_for_all:
            return reservation
        same = {name: fields.get(name) for name in ("argsrepr", "kwargsrepr", "compression")}
        if carried is not None:
            same["serializer"] = carried.serializer
        same = {name: value for name, value in same.items() if value is not None}
        headers = dict(request.headers or {})
        if reservation is not None:
            headers[SLOT_HEADER] = SlotHeader.travelling(fields, reservation).text()
        if carried is not None and carried.queue is not None:
            # Its exchange may route it to other queues as well.
            same |= {"queue": Queue(carried.queue), "exchange": "", "declare": []}
        sending = _Sending(self._task.app, None)
        again = self._task.signature_from_request(headers=headers, retries=request.retries, **same)
        try:
            again.apply_async(**sending.options)
        except OperationalError as error:
            log.warning("task %s cannot be sent again: %s", request.id, error)
            return reservation if sending.is_unsent(error) else None
        except BaseException as error:
            if reservation is not None and sending.is_unsent(error):
                run(give_back, reservation)
            raise
        raise Ignore

    def _refused(self, error: RateLimitedError) -> BaseException:
        return self._retry(error, error.retry_after) if self.on_reject == "retry" else error

    def _retry(self, error: RateLimitedError, countdown: float) -> BaseException:
        # An automatic retry may have its own bound.
        most = getattr(self._task, "retry_kwargs", {}).get("max_retries")
        if _delays_by_seconds(self._task.app):
            countdown = math.ceil(countdown)  # rounded down, the retry would be refused once more
        retry: BaseException = self._task.retry(exc=error, countdown=countdown, max_retries=most, throw=False)
        return retry


def _delays_by_seconds(app: Any) -> bool:
    """Whether the broker is RabbitMQ: in its quorum queues, Celery delays messages by whole seconds. It cuts
    off the rest, and raises if nothing is left.
    """
    return bool(app.producer_pool.connections.connection.transport.driver_type == "amqp")


def policy_from(spec: Mapping[str, Any], app: Any, name: str) -> Policy:
    """The policy of a shape, on the app's store if it names none."""
    if spec.get("policy") is None and spec.get("store") is None:
        spec = {**spec, "store": store_of(app)}
    return policy_of(spec, name=name)


_STORES: weakref.WeakKeyDictionary[Any, Store] = weakref.WeakKeyDictionary()
_MAKING = process.lock()


def store_of(app: Any) -> Store:
    """The store of all workers of an app: `app.conf.shapekit_store`, or the Redis of broker or results."""
    with _MAKING:
        if app not in _STORES:
            _STORES[app] = _store(app)
        return _STORES[app]


def _store(app: Any) -> Store:
    conf = app.conf
    setting_or_store = conf.get("shapekit_store")
    if _is_redis(setting_or_store):
        return _redis_store("shapekit_store", setting_or_store, None)
    if setting_or_store is not None:
        return open_store(setting_or_store, field="app.conf.shapekit_store")[0]
    broker = "broker_url" if conf.broker_write_url == conf.broker_url else "broker_write_url"
    for setting, tls in (
        (broker, "broker_use_ssl"),
        ("broker_read_url", "broker_use_ssl"),
        ("result_backend", "redis_backend_use_ssl"),
    ):
        # `get` would not read the environment, which takes precedence.
        urls = getattr(conf, setting)
        url = urls[0] if isinstance(urls, list | tuple) and urls else urls
        if _is_redis(url):
            return _redis_store(setting, url, conf.get(tls))
    bound = "is missing, and neither the broker nor the result backend is a Redis"
    fix = 'set it to a URL such as "redis://localhost", or to a Store'
    raise ConfigError("app.conf.shapekit_store", None, bound, fix)


def _is_redis(url: object) -> TypeGuard[str]:
    return isinstance(url, str) and url.startswith(("redis://", "rediss://", _SOCKET))


_SOCKET = "redis+socket://"


def _redis_store(setting: str, url: str, tls: object) -> Store:
    """The store at one of Celery's URLs, the first if there are several, with its settings for TLS."""
    place, _, query = url.partition(";")[0].partition("?")
    options: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    if place.startswith(_SOCKET):
        place = f"unix://{place.removeprefix(_SOCKET)}"
        if "virtual_host" in options:
            options["db"] = options.pop("virtual_host")
    # As kombu does, which ignores a bare True.
    elif tls and isinstance(tls, Mapping):
        place = f"rediss://{place.partition('://')[2]}"
        options = {**tls, **options}
    if "ssl_cert_reqs" in options:
        options["ssl_cert_reqs"] = _cert_reqs(options["ssl_cert_reqs"])
    parameters = {
        name: int(value) if isinstance(value, int) else value
        for name, value in options.items()
        if value is not None
    }
    try:
        return open_store(f"{place}?{urlencode(parameters)}" if parameters else place)[0]
    except ConfigError as error:
        bound = f"does not lead to a store: with its options it {error.bound}"
        fix = 'set app.conf.shapekit_store to a URL such as "redis://localhost:6379/0", or to a RedisStore'
        raise ConfigError(f"app.conf.{setting}", UNSHOWN, bound, fix) from None


def _cert_reqs(value: Any) -> str:
    """redis-py's word for `CERT_REQUIRED` and the like, given as a name or a constant of the module ssl."""
    name = "none" if value is None else getattr(value, "name", value)
    return str(name).removeprefix("CERT_").lower()


def _seconds(field: str, value: Duration) -> float:
    return duration_us(field, value, least=0) / SECOND_US


_STRATEGY = "shapekit.integrations.celery.worker:strategy"
_STEP = "shapekit.integrations.celery.worker:ShapingStep"


class ShapedTask(Task):
    """A task that runs at the rate in its `shape`, counted over all workers.

    `shape` is a `Policy`, or a dict with the keywords of one. A dict may also contain:

    - `policy`: an existing policy, instead of its keywords.
    - `key`, `cost`: from the task's parameters, as for `@shaped`. `apply_async(shape_cost=5)` sets the cost
      of one call.
    - `on_reject`: what happens to a task that would have to wait too long: "fail" (the default), "reject" or
      "retry".
    - `grace`: how late a task may start and still use its slot; otherwise it takes another. The default is
      three quarters of a slot, but at least 10 ms.

    Without its own store, the policy uses `app.conf.shapekit_store`, or else the Redis that is the broker or
    the result backend.
    """

    abstract = True
    shape: Shape | None = None
    """The policy of the task, or its keywords."""
    Strategy = _STRATEGY
    shaped: Shaped
    """The policy of the task, and the admission of its running call."""

    def __init__(self) -> None:
        if self.shape is None:
            fix = 'write @app.task(base=ShapedTask, shape={"rate": "10/s"})'
            raise ConfigError("shape", None, "is missing", fix)
        spec = checked_shape(self.shape)
        check_without_store(spec, self.run)
        _shape_run(self, lambda: policy_from(spec, self.app, str(self.name)), spec)

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Add the shaping step to the workers of the app."""
        app.steps["consumer"].add(_STEP)
        task = _registered(app).get(cls.name)
        if type(task) is cls and not hasattr(task, "shaped"):
            # A subclass may have its own `__init__` that does not call this one.
            ShapedTask.__init__(task)

    def apply(self, *args: Any, **options: Any) -> Any:
        """`Task.apply`; `shape_cost=5` sets the cost of this call."""
        return super().apply(*args, **_with_cost(options))


def shape_app(app: Any, routes: Mapping[str, Shape]) -> None:
    """Shape existing tasks by their names.

        shape_app(app, {"billing.sync": {"rate": "1/s"}, "billing.*": policy})

    The first matching pattern wins. All tasks that match one pattern share its rate. Tasks may be registered
    before or after this call. Celery's own tasks, which chords need, match only patterns that begin with
    "celery.".
    """
    if not hasattr(app, "steps"):
        raise ConfigError(
            "app", app, "is not an app of Celery", 'pass the one that has the tasks, Celery("…")'
        )
    if not isinstance(routes, Mapping):
        raise ConfigError("routes", routes, "is not a table", 'write {"billing.*": policy}')
    shapes = [(pattern, *_route(app, pattern, shape)) for pattern, shape in routes.items()]

    def attach(task: Any) -> None:
        is_celerys = task.name.startswith("celery.")
        for pattern, policy, spec in shapes:
            fits = fnmatch.fnmatchcase(task.name, pattern)
            if fits and is_celerys <= pattern.startswith("celery.") and not hasattr(task, "shaped"):
                _attach(task, policy, spec)

    app.steps["consumer"].add(_STEP)
    if app not in _ATTACHING:
        _ATTACHING[app] = []
        _hear_of_tasks(app)
    _ATTACHING[app].append(attach)
    attach_all(app)


def shape_publish(task: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
    """Reserve a slot for a task, then publish it. If the slot is refused, raise and publish nothing.

    The message carries its slot, and an eta unless the slot is too near or too far away for the broker.
    """
    app = getattr(task, "app", None)
    if app is None:
        raise ConfigError("task", task, "is not a task", "pass one of the tasks of your app")
    attach_all(app)
    shaped = getattr(task, "shaped", None)
    if shaped is None:
        raise ConfigError("task", task, "is not shaped", "make it a ShapedTask, or use shape_app")
    for field in ("eta", "countdown"):
        if options.get(field) is not None:
            fix = "use apply_async, which takes the slot after it"
            raise ConfigError(field, options[field], "conflicts with the slot that is taken now", fix)
    if app.conf.task_always_eager or not shaped.policy.enforce:
        return task.apply_async(args, kwargs, **options)
    if app.conf.task_protocol == 1:
        bound = "has no headers, in which a slot could travel, so that the worker would take a second one"
        fix = "set it to 2, or use apply_async, which takes the slot in the worker"
        raise ConfigError("app.conf.task_protocol", 1, bound, fix)
    options = _with_cost({**options, "task_id": options.get("task_id") or uuid()})
    headers = options["headers"] = dict(options.get("headers") or {})
    admission = shaped.admission_of(headers, args, kwargs or {})
    shaper = shaped.policy.shaper
    reservation = shaper.reserve(admission.key, cost=admission.cost)
    if not reservation:
        run(shaper.core.leave, reservation)
    soonest_s = 2.0 if _delays_by_seconds(app) else 0.0  # part of the last second has passed already
    if soonest_s <= reservation.delay <= Settings(app).max_eta_s:
        options["eta"] = datetime.now(UTC) + timedelta(seconds=reservation.delay)
    headers[SLOT_HEADER] = SlotHeader.travelling({"id": options["task_id"]}, reservation).text()
    sending = _Sending(app, options.get("retry_policy"))
    try:
        return task.apply_async(args, kwargs, **{**options, **sending.options})
    except BaseException as error:
        if sending.is_unsent(error):
            run(give_back, reservation)
        raise


class _Sending:
    """The publishing of a message with a slot. If the answer of the broker is lost, the message may be there:
    the slot is left to it, and a copy that kombu publishes after that has none.
    """

    def __init__(self, app: Any, retry_policy: Mapping[str, Any] | None) -> None:
        policy = {**app.conf.task_publish_retry_policy, **(retry_policy or {})}
        self._errback = policy.get("errback")
        self.options = {"retry_policy": {**policy, "errback": self._failed}, _SENDING: self}
        """The options to publish with."""
        self.headers: dict[str, Any] = {}
        """The headers that are sent, once kombu has them."""
        self._may_be_sent = False

    def _failed(self, error: BaseException, interval: float) -> None:
        """Called by kombu before it tries again."""
        if not _is_refused(error):
            self._may_be_sent = True
            self.headers.pop(SLOT_HEADER, None)
        if self._errback is not None:
            self._errback(error, interval)

    def is_unsent(self, error: BaseException) -> bool:
        """Whether the broker cannot have the message with the slot, after this error of the last try."""
        return not self._may_be_sent and (isinstance(error, _UNSENT) or _is_refused(error))


_UNSENT = (SerializationError, TypeError, ValueError, LookupError)
"""Errors of a message that cannot be published."""


def _is_refused(error: BaseException) -> bool:
    """Whether an error says that there was no connection."""
    return isinstance(error.__cause__ or error, ConnectionRefusedError | socket.gaierror)


_ATTACHING: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def attach_all(app: Any) -> None:
    """Shape all registered tasks."""
    for task in tuple(_registered(app).values()):
        _attach_one(app, task)


def _registered(app: Any) -> Any:
    """The tasks registered so far."""
    return app._tasks  # noqa: SLF001 - reading `tasks` would finalize the app


def _attach_one(app: Any, task: Any) -> None:
    for attach in _ATTACHING.get(app, ()):
        attach(task)


def _hear_of_tasks(app: Any) -> None:
    """Shape tasks that are registered late or lazily: Celery calls `on_bound` of the app's base class."""
    app.on_after_finalize.connect(lambda **_: attach_all(app), weak=False)
    bound = app.Task.on_bound.__func__

    def on_bound(cls: Any, to: Any) -> None:
        bound(cls, to)
        if to is app and (task := _registered(app).get(cls.name)) is not None:
            _attach_one(app, task)

    app.Task.on_bound = classmethod(on_bound)


def _route(app: Any, pattern: str, shape: Shape) -> tuple[Any, Any]:
    spec = checked_shape(shape)
    check_without_store(spec)
    return functools.cache(lambda: policy_from(spec, app, pattern)), spec


def _attach(task: Any, policy: Any, spec: Any) -> None:
    _shape_run(task, policy, spec)
    task.Strategy = _STRATEGY
    apply = task.apply

    @functools.wraps(apply)
    def applying(*args: Any, **options: Any) -> Any:
        return apply(*args, **_with_cost(options))

    task.apply = applying


def _shape_run(task: Any, policy: Any, spec: Any) -> None:
    # Inside Celery's automatic retry, so that each attempt takes its own slot.
    name = "_orig_run" if hasattr(task, "_orig_run") else "run"
    shaped = Shaped(task, getattr(task, name), policy, spec)

    @functools.wraps(getattr(task, name))
    def run(*args: Any, **kwargs: Any) -> Any:
        return shaped.run(args, kwargs)

    task.shaped = shaped
    setattr(task, name, run)


def _before_publish(headers: dict[str, Any], properties: dict[str, Any], **_: Any) -> None:
    """Move the cost of a call, also when sent by name, to its headers: brokers may drop other options."""
    if COST in properties:
        headers[COST] = properties.pop(COST)
    sending: _Sending | None = properties.pop(_SENDING, None)
    if sending is not None:
        sending.headers = headers


before_task_publish.connect(_before_publish, weak=False)


def _with_cost(options: dict[str, Any]) -> dict[str, Any]:
    """Move the cost of a call to the headers of its message."""
    if COST not in options:
        return options
    cost = options.pop(COST)
    return {**options, "headers": {**(options.get("headers") or {}), COST: cost}}
