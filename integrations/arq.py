"""arq: jobs with one rate for all workers. A job whose slot is far away goes back to its queue.

    @shaped_job(rate="10/s", key="{account}", store="redis://localhost")
    async def sync(ctx, account): ...

    class WorkerSettings:
        functions = [sync]

A job whose slot is less than 1.5 s away waits in its worker. Any other is deferred until shortly before its
slot, which waits for it in the Redis of the queue. This is not a retry.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, Unpack

from shapekit import errors
from shapekit._adapters.tasks import AGAIN_S, PutBack, ShapedTasks, TaskShape
from shapekit._runtime.drivers import TASKS

try:
    from arq.constants import retry_key_prefix  # pyright: ignore[reportMissingImports]
    from arq.worker import Retry  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise errors.missing("shaped_job", "arq") from error

__all__ = ["shaped_job"]

P = ParamSpec("P")
R = TypeVar("R")

NEAR_S = 1.5
"""The longest wait in a worker."""
AHEAD_S = 1.0
"""How long before its slot a job comes back. Workers look for due jobs twice a second."""
SLOT_HEADER = "shapekit:arq:"
"""The prefix of the Redis key that holds the slot of a job."""
KEPT_S = 88_400
"""How long that key outlives the slot, and how long arq itself keeps the count of tries."""

log = logging.getLogger("shapekit.arq")


def shaped_job(
    **shape: Unpack[TaskShape],
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Start the jobs of a coroutine function at a rate, counted over all workers.

    Takes the keywords of `Policy`, of which `store` is needed: workers share it. And:

    - `policy`: an existing policy, instead of its keywords.
    - `key`, `cost`: from the job's parameters, as for `@shaped`.
    - `on_reject`: what happens to a job that would have to wait too long: "fail" (the default), or "retry":
      it comes back after the time that the refusal names, and no try is counted.
    - `grace`: how late a job may start and still use its slot; otherwise it takes another. The default is
      three quarters of a slot, but at least 10 ms and at most 5 s.

    If another job calls the function with its `ctx`, or a test with a `ctx` that has no `job_id`, the call
    waits in place. Only the outermost function of a job is put back, so put this decorator above all others.
    """

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        tasks = ShapedTasks(function, function.__qualname__, shape, NEAR_S, ahead_s=AHEAD_S)

        @functools.wraps(function)
        async def run(*args: P.args, **kwargs: P.kwargs) -> R:
            ctx: Any = args[0]
            if "job_id" not in ctx or not _is_job():
                async with tasks.calls.admission(args, kwargs):
                    return await function(*args, **kwargs)
            if (early_s := ctx["score"] / 1000 - time.time()) > 0:
                # arq also starts a job that another worker has deferred since this one read the queue.
                await _executed(ctx, _uncounted(ctx))
                raise Retry(early_s)
            try:
                admitted = await tasks.admit(TASKS, await _take_slot_header(ctx), args, kwargs)
                if isinstance(admitted, PutBack):
                    await _note(ctx, admitted)
            except asyncio.CancelledError:
                # The worker stops, and another one will run the job: this does not count as a try. If Redis
                # is gone as well, it does; the job must not fail for that.
                with suppress(Exception):
                    await ctx["redis"].execute_command(*_uncounted(ctx))
                raise
            if isinstance(admitted, PutBack):
                raise Retry(admitted.delay_s)
            async with admitted:
                return await function(*args, **kwargs)

        return run

    return decorate


def _is_job() -> bool:
    """Whether the calling coroutine is the one that the worker runs as a task."""
    task: Any = asyncio.current_task()
    frame = getattr(task.get_coro(), "cr_frame", None)
    return frame is sys._getframe(1)  # noqa: SLF001 - documented


async def _take_slot_header(ctx: Any) -> str | None:
    """Read and delete the stored slot of a job, so that a job that runs again takes another."""
    key = SLOT_HEADER + ctx["job_id"]
    raw, _ = await _executed(ctx, ("GET", key), ("DEL", key))
    return None if raw is None else str(raw, "utf-8")


async def _note(ctx: Any, later: PutBack) -> None:
    """Store the slot of a job that comes back, and do not count this as a try."""
    key, kept_s = SLOT_HEADER + ctx["job_id"], round(later.delay_s) + KEPT_S
    slots = [] if later.slot_header is None else [("SET", key, later.slot_header, "EX", kept_s)]
    await _executed(ctx, *slots, _uncounted(ctx))


async def _executed(ctx: Any, *commands: Sequence[Any]) -> list[Any]:
    """Execute commands together; again, if no answer comes."""
    while True:
        try:
            async with ctx["redis"].pipeline(transaction=True) as together:
                for command in commands:
                    together.execute_command(*command)
                answers: list[Any] = await together.execute()
        except Exception as error:
            # If this raised, arq would report the job as failed.
            log.warning("job %s waits for Redis: %s", ctx["job_id"], error)
            await asyncio.sleep(AGAIN_S)
        else:
            return answers


def _uncounted(ctx: Any) -> tuple[Any, ...]:
    """The command that sets arq's count of tries to what it was before this one."""
    return "SET", retry_key_prefix + ctx["job_id"], ctx["job_try"] - 1, "EX", KEPT_S
