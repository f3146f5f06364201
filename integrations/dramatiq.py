"""Dramatiq: actors with one rate for all workers. A message whose slot is far away goes back to its queue.

    broker.add_middleware(ShapedActors(store="redis://localhost"))

    @dramatiq.actor(shape={"rate": "10/s", "key": "{account}"})
    def sync(account): ...

A message whose slot is less than half a second away waits in its worker thread. Any other is enqueued again
with its slot, delayed until shortly before that, and acknowledged.
"""

from __future__ import annotations

import functools
import logging
import time
from contextvars import ContextVar
from typing import Any

from shapekit import errors
from shapekit._adapters.tasks import AGAIN_S, PutBack, ShapedTasks
from shapekit._runtime.drivers import run
from shapekit.errors import ConfigError, RateLimitedError
from shapekit.stores import StoreLike

try:
    from dramatiq.common import q_name  # pyright: ignore[reportMissingImports]
    from dramatiq.middleware import (  # pyright: ignore[reportMissingImports]
        Middleware,
        MiddlewareError,
        SkipMessage,
    )
except ImportError as error:
    raise errors.missing("ShapedActors", "dramatiq") from error

__all__ = ["ShapedActors"]

NEAR_S = 0.5
"""The longest wait in a worker thread."""
AHEAD_S = 0.4
"""How long before its slot a message comes back."""
POLL_MS = 50
"""How often workers look for messages of shaped actors that have become due. Dramatiq itself slows down to
once a second, so that messages that come back would miss their slots.
"""
LONGEST_S = 6 * 24 * 3600.0
"""The longest delay at once: Dramatiq allows for less than seven days."""
SLOT_HEADER = "shapekit"
"""The option of a message that holds its slot."""

log = logging.getLogger("shapekit.dramatiq")


class ShapedActors(Middleware):
    """Middleware that starts messages of actors at the rate in their option `shape`, over all workers.

    `shape` is a `Policy`, or a dict with the keywords of one. A dict may also contain:

    - `policy`: an existing policy, instead of its keywords.
    - `key`, `cost`: from the actor's parameters, as for `@shaped`.
    - `on_reject`: what happens to a message that would have to wait too long: "fail" (the default), or
      "retry": it comes back after the time that the refusal names.
    - `grace`: how late a message may start and still use its slot; otherwise it takes another. The default is
      three quarters of a slot, but at least 10 ms and at most 5 s.

    `store` is the store of all policies that have none of their own. Add the middleware to the broker before
    the actors are declared. An actor that is called directly waits where it is called.
    """

    def __init__(self, store: StoreLike | None = None) -> None:
        self._store = store
        self._queues: set[str] = set()
        self._tasks: dict[str, ShapedTasks] = {}
        self._message: ContextVar[Any] = ContextVar("message", default=None)
        self._is_worker: ContextVar[bool] = ContextVar("is_worker", default=False)
        """Whether this is a worker thread that is not just putting a message back."""

    @property
    def actor_options(self) -> set[str]:
        """The options of actors that this middleware reads."""
        return {"shape"}

    def before_declare_actor(self, broker: Any, actor: Any) -> None:
        """Shape an actor that has the option."""
        if actor.options.get("shape") is None:
            return
        function, name = actor.fn, actor.actor_name
        try:
            tasks = ShapedTasks(function, name, actor.options["shape"], NEAR_S, self._store, AHEAD_S)
        except ConfigError as error:
            # Dramatiq passes on only this error of a middleware, and logs all others.
            raise MiddlewareError(f"actor {name}: {error}") from error
        self._queues.add(actor.queue_name)
        self._tasks[name] = tasks

        @functools.wraps(function)
        def run_shaped(*args: Any, **kwargs: Any) -> Any:
            message = self._message.get()
            # An actor may also call others, or itself.
            if message is None or message.actor_name != name:
                with tasks.calls.admission(args, kwargs):
                    return function(*args, **kwargs)
            self._message.set(None)
            # Without the slot, so that a message that Dramatiq retries takes another.
            slot_header = message.options.pop(SLOT_HEADER, None)
            try:
                admitted = run(tasks.admit, slot_header, args, kwargs)
            except RateLimitedError as error:
                setattr(error, _MARK, True)
                raise
            if isinstance(admitted, PutBack):
                token = self._is_worker.set(False)
                try:
                    _put_back(broker, message, admitted)
                finally:
                    self._is_worker.reset(token)
                raise SkipMessage(f"the message comes back in {admitted.delay_s:.1f} s")
            with admitted:
                return function(*args, **kwargs)

        actor.fn = run_shaped
        throws = actor.options.get("throws") or ()
        actor.options["throws"] = (*(throws if isinstance(throws, tuple) else (throws,)), _RefusedError)

    def after_consumer_thread_boot(self, broker: Any, thread: Any) -> None:
        """Make a worker look often for messages of shaped actors, new ones and those that come back."""
        if q_name(thread.queue_name) in self._queues:
            thread.worker_timeout = min(thread.worker_timeout, POLL_MS)

    def after_worker_thread_boot(self, broker: Any, thread: Any) -> None:
        """Remember that this thread processes messages."""
        self._is_worker.set(True)

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        """Remove the slot from a message that other middleware enqueues again: it takes another one."""
        if self._is_worker.get():
            message.options.pop(SLOT_HEADER, None)

    def before_process_message(self, broker: Any, message: Any) -> None:
        """Remember the message for the actor that runs next in this thread."""
        if getattr(message, "redelivered", False):
            # As soon as a connection is lost, RabbitMQ delivers its messages again. The worker that had this
            # one before may have used the slot, or may still use it.
            message.options.pop(SLOT_HEADER, None)
        self._message.set(message)

    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        """Forget the message, and give back the slot that it has brought if its actor did not run."""
        self._message.set(None)
        slot_header, tasks = message.options.pop(SLOT_HEADER, None), self._tasks.get(message.actor_name)
        if slot_header is not None and tasks is not None:
            # A worker that died may have used a slot that has passed.
            run(tasks.give_back, slot_header, is_unused=False)

    after_skip_message = after_process_message


_MARK = "_shapekit_refused"
"""The attribute that marks the error of a refused message; the same error raised by an actor has none."""


class _Marked(type):
    def __instancecheck__(cls, error: object) -> bool:
        return hasattr(error, _MARK)


class _RefusedError(Exception, metaclass=_Marked):
    """Matches the errors of refused messages in the option `throws`, so that Dramatiq does not retry them.

    An option of the message itself would be serialized with it, for `on_failure`.
    """


def _put_back(broker: Any, message: Any, later: PutBack) -> None:
    """Enqueue a message again; this copy of it is to be skipped."""
    options = {} if later.slot_header is None else {SLOT_HEADER: later.slot_header}
    delay_s = min(later.delay_s, LONGEST_S)
    while True:
        try:
            broker.enqueue(message.copy(options=options), delay=round(delay_s * 1000))
        except Exception as error:
            # If this raised, Dramatiq would log it and acknowledge the message, which would be lost.
            log.warning("message %s cannot be put back yet: %s", message.message_id, error)
            time.sleep(AGAIN_S)
            options = {}  # if only the answer was lost, the first copy has the slot
        else:
            break
    # Otherwise a result backend would store None as the result.
    message.options["store_results"] = False
