"""RQ: jobs with one rate for all workers. A job whose slot is far away is scheduled for its slot.

    @shaped_job(rate="10/s", key="{account}", store="redis://localhost")
    def sync(account): ...

    rq worker --worker-class shapekit.integrations.rq.ShapedWorker

A worker takes the slot before it forks. A job whose slot is less than 2.5 s away waits in its worker; any
other goes to RQ's registry of scheduled jobs until shortly before its slot. This is not a retry.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar, Unpack

from shapekit import errors
from shapekit._adapters.tasks import (
    PutBack,
    ShapedTasks,
    TaskShape,
    in_context,
    refusal_of,
    slot_header_of,
    told_of,
)
from shapekit._runtime.drivers import run
from shapekit._runtime.process import from_signal
from shapekit.errors import RateLimitedError

try:
    from rq.job import Job, JobStatus, get_current_job  # pyright: ignore[reportMissingImports]
    from rq.queue import Queue  # pyright: ignore[reportMissingImports]
    from rq.worker import BaseWorker, SimpleWorker, Worker  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise errors.missing("ShapedWorker", "rq") from error

__all__ = ["ShapedSimpleWorker", "ShapedWorker", "Shaping", "shaped_job"]

P = ParamSpec("P")
R = TypeVar("R")

NEAR_S = 2.5
"""The longest wait in a worker."""
AHEAD_S = 1.25
"""How long before its slot a job comes back, give or take a second: RQ schedules by the second."""
LEASE_S = 10.0
"""After how many seconds a job comes back whose worker died while it waited."""
SLOT_HEADER = "shapekit"
"""The field in the hash of a job that holds its slot."""
STARTS = "shapekit_starts"
"""The field in the hash of a job that holds which start of it ended the last lease."""
_ADMITTED = "SHAPEKIT_RQ"
"""The environment variable in which a worker passes the slot to the process of its job."""


_START = """
local status = redis.call('HGET', KEYS[2], 'status')
if redis.call('ZREM', KEYS[1], ARGV[1]) == 1 and status and status ~= 'canceled' then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
  if ARGV[4] == '1' then
    redis.call('LPUSH', KEYS[3], ARGV[1])
  end
end
return {status, redis.call('HGET', KEYS[2], ARGV[2])}
"""
"""Ends the lease of a job that starts now. If the worker dies, RQ's maintenance finds the job where it would
be without shapekit. A repeated request has the same answer.
"""


def shaped_job(**shape: Unpack[TaskShape]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Start the jobs of a function at a rate, counted over all workers.

    Takes the keywords of `Policy`, of which `store` is needed: workers share it. And:

    - `policy`: an existing policy, instead of its keywords.
    - `key`, `cost`: from the job's parameters, as for `@shaped`.
    - `on_reject`: what happens to a job that would have to wait too long: "fail" (the default), or "retry":
      it comes back after the time that the refusal names, and no retry is counted.
    - `grace`: how late a job may start and still use its slot; otherwise it takes another. The default is
      three quarters of a slot, but at least 10 ms and at most 5 s.

    A direct call waits in place, and so does a job in a worker of another class.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = f"{function.__module__}.{function.__qualname__}"
        tasks = ShapedTasks(function, name, shape, NEAR_S, ahead_s=AHEAD_S)

        def admission(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            slot_header, refusal = _from_worker()
            if refusal is not None:
                raise refusal_of(refusal)
            if slot_header is None:
                return tasks.calls.admission(args, kwargs)
            return tasks.admission_with(slot_header, args, kwargs)

        call: Callable[P, R] = in_context(function, admission)
        setattr(call, _ADMITTED, tasks)
        return call

    return decorate


def _from_worker() -> tuple[str | None, Sequence[Any] | None]:
    """The slot that the worker has taken for the running job, or its refusal; only the first time."""
    job, text = get_current_job(), os.environ.get(_ADMITTED)
    if job is None or text is None:
        return None, None
    job_id, slot_header, refusal = json.loads(text)
    if job_id != job.id:
        return None, None
    del os.environ[_ADMITTED]
    return slot_header, refusal


class Shaping(BaseWorker):
    """Mix this into a worker class of RQ: it takes the slots of shaped jobs, and runs RQ's scheduler."""

    def work(self, *args: Any, **kwargs: Any) -> bool:
        """`Worker.work`, always with a scheduler: it brings back the jobs that were put back."""
        has_worked: bool = super().work(*args, **{**kwargs, "with_scheduler": True})
        return has_worked

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Wait for the slot of a job and run it, or schedule it for its slot."""
        os.environ.pop(_ADMITTED, None)
        tasks = _tasks_of(job)
        if tasks is None or self._may_start(job, queue, tasks):
            super().execute_job(job, queue)

    def _may_start(self, job: Job, queue: Queue, tasks: ShapedTasks) -> bool:
        key = queue.scheduled_job_registry.key
        with self.connection.pipeline() as together:
            together.hget(job.key, SLOT_HEADER)
            together.hdel(job.key, SLOT_HEADER)
            # If this worker dies while the job waits, the scheduler brings it back.
            together.zadd(key, {job.id: int(time.time() + LEASE_S)})
            together.lrem(queue.intermediate_queue_key, 1, job.id)
            raw, _, _, was_kept = together.execute()
        slot_header = None if raw is None else str(raw, "utf-8")
        admitted: tuple[str | None, Sequence[Any] | None]
        try:
            outcome = run(tasks.admit, slot_header, job.args or (), job.kwargs or {})
        except RateLimitedError as error:
            admitted = None, told_of(error)
        except Exception as error:
            if from_signal(error):
                raise  # such as RQ's StopRequested: the job comes back when its lease ends
            # The arguments give no valid key or cost: the job gets that error when it runs.
            admitted = None, None
        else:
            if isinstance(outcome, PutBack):
                self._put_back(job, queue, tasks, outcome)
                return False
            admitted = slot_header_of(outcome.reservation), None
        keys, start = (key, job.key, queue.intermediate_queue_key), uuid.uuid4().hex
        status, started = self.connection.eval(_START, 3, *keys, job.id, STARTS, start, was_kept)
        if _is_dropped(status) or started != start.encode():
            run(tasks.give_back, admitted[0])
            return False
        os.environ[_ADMITTED] = json.dumps((job.id, *admitted))
        return True

    def _put_back(self, job: Job, queue: Queue, tasks: ShapedTasks, later: PutBack) -> None:
        if _is_dropped(self.connection.hget(job.key, "status")):
            self.connection.zrem(queue.scheduled_job_registry.key, job.id)
            run(tasks.give_back, later.slot_header)
            return
        at = datetime.fromtimestamp(time.time() + later.delay_s, UTC)
        with self.connection.pipeline() as together:
            if later.slot_header is not None:
                together.hset(job.key, SLOT_HEADER, later.slot_header)
            queue.schedule_job(job, at, pipeline=together)
            together.execute()
        self.log.info("job %s is put back: it comes back in %.1f s", job.id, later.delay_s)


class ShapedWorker(Shaping, Worker):
    """RQ's worker, which runs each job in a process of its own, with slots for shaped jobs."""


class ShapedSimpleWorker(Shaping, SimpleWorker):
    """RQ's worker that runs jobs in its own process, with slots for shaped jobs."""


def _is_dropped(status: bytes | None) -> bool:
    """Whether a job was cancelled or deleted while it waited, by the status in its hash."""
    return status is None or status == JobStatus.CANCELED.value.encode()


def _tasks_of(job: Job) -> ShapedTasks | None:
    """The `ShapedTasks` of the job's function; None if it is not shaped, or cannot be imported."""
    try:
        tasks: ShapedTasks | None = getattr(job.func, _ADMITTED, None)
    except Exception as error:
        if from_signal(error):
            raise
        # RQ reports that when it runs the job.
        return None
    return tasks
