"""Celery: shapes tasks under one rate for all workers. A waiting task takes up no slot of the pool.

    @app.task(base=ShapedTask, shape={"rate": "10/s", "key": "{account}"})
    def sync(account): ...

    shape_app(app, {"billing.*": policy})       # tasks that you do not own

A task whose slot has come goes to the pool. One whose slot is less than half a second away waits in the
worker, outside the pool. Any other is parked in Redis together with its slot, and comes back shortly before
the slot: until then it occupies neither the pool nor a worker's memory.
"""

from __future__ import annotations

import fnmatch
import functools
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from shapekit import errors

try:
    from celery import Task, uuid
except ImportError as error:
    raise errors.missing("ShapedTask", "celery") from error

from shapekit._adapters.tasks import Shape, check_without_store, checked_shape
from shapekit._runtime.drivers import run
from shapekit.errors import ConfigError
from shapekit.integrations.celery.shape import (
    COST,
    SLOT_HEADER,
    Settings,
    Shaped,
    SlotHeader,
    policy_from,
)

__all__ = ["Shaped", "ShapedTask", "shape_app", "shape_publish"]

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

    Unless it has a store of its own, the policy is kept in `app.conf.shapekit_store`, or else in the Redis
    that is the broker or the result backend.
    """

    abstract = True
    shape: Shape | None = None
    """The policy of the task, or its keywords."""
    Strategy = _STRATEGY
    shaped: Shaped
    """The policy of the task, and the admission of its running call."""

    def __init__(self) -> None:
        if self.shape is None:
            raise ConfigError(
                "shape", None, "is missing", 'write @app.task(base=ShapedTask, shape={"rate": "10/s"})'
            )
        spec, policy = checked_shape(self.shape)
        if spec:
            check_without_store(spec, self.run)
        made = (lambda: policy) if policy else lambda: policy_from(spec, self.app, str(self.name))
        _shape_run(self, "run", Shaped(self, self.run, made, spec))

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Add the shaping step to the workers of the app."""
        app.steps["consumer"].add(_STEP)

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """`Task.apply_async`; `shape_cost=5` sets the cost of this call."""
        return super().apply_async(*args, **_with_cost(options))

    def apply(self, *args: Any, **options: Any) -> Any:
        """`Task.apply`; `shape_cost=5` sets the cost of this call."""
        return super().apply(*args, **_with_cost(options))


def shape_app(app: Any, routes: Mapping[str, Shape]) -> None:
    """Shape existing tasks by their names.

        shape_app(app, {"billing.sync": {"rate": "1/s"}, "billing.*": policy})

    The first matching pattern wins. All tasks that match one pattern share its rate. Tasks may be registered
    before or after. Celery's own tasks, on which chords depend, match only patterns that begin with
    "celery.".
    """
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

    The message carries its slot, and an eta unless the slot is too far away for the broker.
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
            raise ConfigError(
                field,
                options[field],
                "conflicts with the slot that is taken now",
                "use apply_async, which takes the slot after it",
            )
    if app.conf.task_always_eager or not shaped.policy.enforce:
        return task.apply_async(args, kwargs, **options)
    options = _with_cost({"task_id": uuid(), **options})
    headers = options["headers"] = dict(options.get("headers") or {})
    admission = shaped.admission_of(headers, args, kwargs or {})
    shaper = shaped.policy.shaper
    reservation = shaper.reserve(admission.key, cost=admission.cost)
    if not reservation:
        run(shaper.core.leave, reservation)
    if reservation.delay <= Settings(app).max_eta_s:
        options["eta"] = datetime.now(UTC) + timedelta(seconds=reservation.delay)
    headers[SLOT_HEADER] = SlotHeader.travelling({"id": options["task_id"]}, reservation).text()
    try:
        return task.apply_async(args, kwargs, **options)
    except BaseException:
        reservation.cancel()
        raise


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
    """Shape tasks that are registered late or lazily: `on_bound` of the app's base class announces them."""
    app.on_after_finalize.connect(lambda **_: attach_all(app), weak=False)
    bound = app.Task.on_bound.__func__

    def on_bound(cls: Any, to: Any) -> None:
        bound(cls, to)
        if to is app and (task := _registered(app).get(cls.name)) is not None:
            _attach_one(app, task)

    app.Task.on_bound = classmethod(on_bound)


def _route(app: Any, pattern: str, shape: Shape) -> tuple[Any, Any]:
    spec, policy = checked_shape(shape)
    if spec:
        check_without_store(spec)
    if policy is not None:
        return (lambda: policy), spec
    return functools.cache(lambda: policy_from(spec, app, pattern)), spec


def _attach(task: Any, policy: Any, spec: Any) -> None:
    # Inside the automatic retry, so that each attempt takes its own slot.
    name = "_orig_run" if hasattr(task, "_orig_run") else "run"
    _shape_run(task, name, Shaped(task, getattr(task, name), policy, spec))
    task.Strategy = _STRATEGY
    for way in ("apply_async", "apply"):
        setattr(task, way, _taking_cost(getattr(task, way)))


def _taking_cost(call: Any) -> Any:
    @functools.wraps(call)
    def calling(*args: Any, **options: Any) -> Any:
        return call(*args, **_with_cost(options))

    return calling


def _shape_run(task: Any, name: str, shaped: Shaped) -> None:
    @functools.wraps(getattr(task, name))
    def run(*args: Any, **kwargs: Any) -> Any:
        return shaped.run(args, kwargs)

    task.shaped = shaped
    setattr(task, name, run)


def _with_cost(options: dict[str, Any]) -> dict[str, Any]:
    """Move the cost of a call to the headers of its message."""
    if COST not in options:
        return options
    cost = options.pop(COST)
    return {**options, "headers": {**(options.get("headers") or {}), COST: cost}}
