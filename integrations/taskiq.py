"""taskiq: tasks with one rate for all workers. A task whose slot is far away comes back shortly before it.

    @broker.task
    @shaped_task(rate="10/s", key="{account}", store="redis://localhost")
    async def sync(account: str): ...

    taskiq worker --receiver shapekit.integrations.taskiq:ShapedReceiver tasks:broker

A worker takes the slot before it resolves the dependencies of a task. A task whose slot is less than a second
away waits in its worker. Any other waits in the Redis of the broker, with its slot. This is not a retry.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn, ParamSpec, TypeVar, Unpack

from shapekit import errors
from shapekit._adapters.tasks import AGAIN_S, PutBack, ShapedTasks, TaskShape, in_context, slot_header_of
from shapekit._runtime.drivers import TASKS
from shapekit.errors import ConfigError, RateLimitedError

try:
    from redis.asyncio import Redis
    from taskiq import AckableMessage  # pyright: ignore[reportMissingImports]
    from taskiq.acks import AcknowledgeType  # pyright: ignore[reportMissingImports]
    from taskiq.exceptions import NoResultError  # pyright: ignore[reportMissingImports]
    from taskiq.receiver import Receiver  # pyright: ignore[reportMissingImports]
    from taskiq.receiver.params_parser import parse_params  # pyright: ignore[reportMissingImports]
    from taskiq.result import TaskiqResult  # pyright: ignore[reportMissingImports]
    from taskiq_redis import ListQueueBroker, RedisStreamBroker  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise errors.missing("ShapedReceiver", "taskiq") from error

__all__ = ["ShapedReceiver", "shaped_task"]

P = ParamSpec("P")
R = TypeVar("R")

NEAR_S = 1.0
"""The longest wait in a worker."""
AHEAD_S = 0.5
"""How long before its slot a task comes back."""
POLL_S = 0.1
"""How often workers look for tasks that have become due."""
LEASE_S = 10.0
"""After how many seconds a task comes back whose worker died while it waited, if the broker forgot it."""
SLOT_HEADER = "shapekit"
"""The label of a message that holds its slot."""
REPEATED_S = 60
"""For how long an answer is kept for a request that is repeated."""
PARKED = "shapekit:taskiq:"
"""The prefix of the Redis key that holds a queue's messages that come back later."""
_SHAPED = "_shapekit_taskiq"
"""The attribute of a shaped function with its `ShapedTasks` and the original function."""

_PARK = """
local told = redis.call('GET', KEYS[2])
if told then
    return tonumber(told)
end
local is_kept = 1
if ARGV[3] ~= '' and redis.call('ZREM', KEYS[1], ARGV[3]) == 0 then
    is_kept = 0 -- the lease has brought the message back
elseif ARGV[2] ~= '' then
    local now = redis.call('TIME')
    redis.call('ZADD', KEYS[1], now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[1], ARGV[2])
end
redis.call('SET', KEYS[2], is_kept, 'EX', ARGV[4])
return is_kept
"""
"""A repeated request does nothing, and has the answer of the first one: by then, the message may be back in
its queue, or have run.
"""
_UNPARK = """
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
for _, message in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100)) do
    if ARGV[1] == 'list' then
        -- At the end that workers take from.
        redis.call('RPUSH', KEYS[2], message)
    else
        redis.call('XADD', KEYS[2], '*', 'data', message)
    end
    redis.call('ZREM', KEYS[1], message)
end
"""

log = logging.getLogger("shapekit.taskiq")


def shaped_task(**shape: Unpack[TaskShape]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Start the tasks of a function at a rate, counted over all workers.

    Write it below `@broker.task`. Takes the keywords of `Policy`, of which `store` is needed: workers share
    it. And:

    - `policy`: an existing policy, instead of its keywords.
    - `key`, `cost`: from the task's parameters, as for `@shaped`.
    - `on_reject`: what happens to a task that would have to wait too long: "fail" (the default), or "retry":
      it comes back after the time that the refusal names, and no retry is counted.
    - `grace`: how late a task may start and still use its slot; otherwise it takes another. The default is
      three quarters of a slot, but at least 10 ms and at most 5 s.

    A direct call waits in place, and so does a task in a worker with another receiver.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = f"{function.__module__}.{function.__qualname__}"
        tasks = ShapedTasks(function, name, shape, NEAR_S, ahead_s=AHEAD_S)
        call: Callable[P, R] = in_context(function, tasks.calls.admission)
        setattr(call, _SHAPED, (tasks, function))
        return call

    return decorate


class ShapedReceiver(Receiver):  # type: ignore[misc, unused-ignore]
    """taskiq's receiver, with slots for shaped tasks. It needs a list or stream broker of taskiq-redis."""

    def __init__(self, broker: Any, executor: Any = None, *args: Any, **kwargs: Any) -> None:
        if not isinstance(broker, ListQueueBroker | RedisStreamBroker):
            fix = "use RedisStreamBroker or ListQueueBroker of taskiq_redis"
            raise ConfigError("broker", broker, "keeps no list or stream to put tasks back into", fix)
        if isinstance(executor, ProcessPoolExecutor):
            bound = "leaves this process before a slot is used"
            raise ConfigError("--use-process-pool", "(given)", bound, "use threads")
        super().__init__(broker, executor, *args, **kwargs)
        self._parking = _Parking(broker)
        self._received: ContextVar[bytes] = ContextVar("received")

    async def listen(self, finish_event: asyncio.Event) -> None:
        """Listen for tasks, and bring back those that have become due."""
        bringing = asyncio.create_task(self._parking.bring_back())
        try:
            await super().listen(finish_event)
        finally:
            bringing.cancel()

    async def callback(self, message: Any, raise_err: bool = False) -> None:
        """Remember the message as it was received, and run its task."""
        token = self._received.set(message.data if isinstance(message, AckableMessage) else message)
        try:
            await super().callback(message, raise_err)
        finally:
            self._received.reset(token)

    async def run_task(self, target: Callable[..., Any], message: Any, **kwargs: Any) -> Any:
        """Wait for the slot of a task and run it, or put it back."""
        shaped: tuple[ShapedTasks, Callable[..., Any]] | None = getattr(target, _SHAPED, None)
        if shaped is None:
            return await super().run_task(target=target, message=message, **kwargs)
        tasks, function = shaped
        # Without the slot, so that a message that taskiq sends again takes another.
        slot_header = message.labels.pop(SLOT_HEADER, None)
        # Without the changes by middleware, which are made again when the message comes back.
        received = self._received.get()
        lease = await self._parking.keep(received, LEASE_S) if self._is_forgotten(message) else None
        try:
            admitted = await tasks.admit(TASKS, slot_header, *self._arguments(function, message))
        except Exception as error:
            slot_header = None
            if isinstance(error, RateLimitedError):
                # A refusal is not retried as other errors are.
                message.labels["retry_on_error"] = False
            target = in_context(function, partial(_refuse, error))
        else:
            if isinstance(admitted, PutBack):
                slot_header = admitted.slot_header
                if await self._parking.keep(received, admitted.delay_s, slot_header, lease or b"") is None:
                    await tasks.give_back(TASKS, slot_header)
                if (ack := kwargs.get("ack_controller")) is not None and ack.is_ackable:
                    await ack.ack()
                return _no_result(message)
            target = in_context(function, lambda args, kwargs: admitted)
            slot_header = slot_header_of(admitted.reservation)
        if lease is not None and not await self._parking.end(lease):
            await tasks.give_back(TASKS, slot_header)
            return _no_result(message)
        return await super().run_task(target=target, message=message, **kwargs)

    def _is_forgotten(self, message: Any) -> bool:
        """Whether the broker has forgotten a message as soon as a worker has received it."""
        if isinstance(self.broker, ListQueueBroker):
            return True
        # Before 0.13, tasks have no label for that.
        ack_time_of = getattr(self, "_get_ack_time", lambda _: self.ack_time)
        return bool(ack_time_of(message) == AcknowledgeType.WHEN_RECEIVED)

    def _arguments(self, function: Callable[..., Any], message: Any) -> tuple[Any, Any]:
        """The arguments of a task as its function will get them, with None for what taskiq injects."""
        signature = inspect.signature(function)
        parsed = message.model_copy(update={"args": [*message.args], "kwargs": {**message.kwargs}})
        if self.validate_params:
            parse_params(signature, self.task_hints.get(message.task_name, {}), parsed)
        bound = signature.bind_partial(*parsed.args, **parsed.kwargs)
        bound.arguments = dict.fromkeys(_needed(signature)) | bound.arguments
        return bound.args, bound.kwargs


class _Parking:
    """The messages of a queue that come back later, in a sorted set in the Redis of its broker."""

    def __init__(self, broker: Any) -> None:
        self._redis = Redis(connection_pool=broker.connection_pool)
        self._park, self._unpark = map(self._redis.register_script, (_PARK, _UNPARK))
        self._key, self._queue = PARKED + broker.queue_name, broker.queue_name
        self._formatter = broker.formatter
        self._is_list = isinstance(broker, ListQueueBroker)

    async def end(self, lease: bytes) -> bool:
        """End a lease. False if the message has come back already."""
        try:
            return await self._asked(uuid.uuid4().hex, 0.0, b"", lease)
        except Exception as error:
            # The task may run twice, but it is not lost.
            log.warning("a lease cannot be ended: %s", error)
            return True

    async def keep(
        self, received: bytes, delay_s: float, slot_header: str | None = None, lease: bytes = b""
    ) -> bytes | None:
        """Make a message come back as it was received, after `delay_s`, with its slot and in place of its
        lease. Returns None and does nothing if the lease has brought it back already.
        """
        message = self._formatter.loads(received)
        message.labels.pop(SLOT_HEADER, None)
        if slot_header is not None:
            message.labels[SLOT_HEADER] = slot_header
        data: bytes = self._formatter.dumps(message).message
        request = uuid.uuid4().hex
        while True:
            try:
                return data if await self._asked(request, delay_s, data, lease) else None
            except Exception as error:
                # If this raised, taskiq would take the task for done, and it would be lost.
                log.warning("task %s cannot be put back yet: %s", message.task_id, error)
                await asyncio.sleep(AGAIN_S)

    async def _asked(self, request: str, delay_s: float, data: bytes, lease: bytes) -> bool:
        keys = [self._key, f"{self._key}:{request}"]
        return bool(await self._park(keys, [round(delay_s * 1000), data, lease, REPEATED_S]))

    async def bring_back(self) -> None:
        """Bring back messages when they become due, until this is cancelled."""
        while True:
            try:
                await self._unpark([self._key, self._queue], ["list" if self._is_list else "stream"])
            except Exception as error:
                log.warning("tasks cannot be brought back yet: %s", error)
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(POLL_S)


def _needed(signature: inspect.Signature) -> Iterator[str]:
    """The parameters without a default."""
    for name, parameter in signature.parameters.items():
        is_one = parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        if is_one and parameter.default is parameter.empty:
            yield name


def _refuse(error: Exception, *_: Any) -> NoReturn:
    raise error


def _no_result(message: Any) -> Any:
    """A result that taskiq neither stores nor retries."""
    return TaskiqResult(
        is_err=True, return_value=None, execution_time=0, labels=message.labels, error=NoResultError()
    )
