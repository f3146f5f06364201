"""Model calls of a framework: one of its hooks gets the input, another one waits, a third one gets the end.

The hooks share nothing but the id of a run. A run takes nothing before it is admitted, so one that never is
(its answer was in a cache) has nothing to give back. A run whose end is never reported keeps what it
reserved. A stream that ends without reporting its usage is settled at its input and the output seen so far.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

from shapekit._adapters.http import CallOutcome, observe
from shapekit._runtime import process
from shapekit._runtime.drivers import THREADS, Driver, Twin, run
from shapekit.errors import ConfigError
from shapekit.llm import LLMBudget, LLMCall
from shapekit.llm.call import log_errors, settle, settle_seen
from shapekit.llm.usage import ModelRequest, StreamUsage, usage_of
from shapekit.policy import Admission, Policy

T = TypeVar("T")
Limit: TypeAlias = Policy | LLMBudget
"""What limits the calls: a policy, or a budget of requests and tokens."""

_MOST_OPEN = 10_000
"""The most runs that are remembered, since the end of some is never reported."""


class ModelRun:
    """A model call, from its first hook to its last."""

    __slots__ = ("_driver", "_stream_usage", "calls", "id", "is_waited_for", "limit", "request", "used")

    def __init__(self, run_id: Hashable, limit: Limit, request: Callable[[], ModelRequest | None]) -> None:
        self.id = run_id
        self.limit = limit
        self.request = request
        """Returns the model's input, for the estimate."""
        self.is_waited_for = True
        """Whether the run may still admit a call."""
        self.calls: list[Admission | LLMCall] = []
        """The calls that were admitted for the run."""
        self.used: Any = None
        """The usage of a stream, added up from its pieces so far."""
        self._driver = THREADS
        self._stream_usage: StreamUsage | None = None

    @property
    def heard(self) -> StreamUsage:
        """The usage seen so far of an answer that comes in pieces."""
        if self._stream_usage is None:
            process.background_ready()
            self._stream_usage = StreamUsage()
        return self._stream_usage

    async def admit(self, driver: Driver, **waits: Any) -> None:
        """Wait until a call of the run may leave."""
        try:
            call = await admit(driver, self.limit, self.request(), **waits)
        except BaseException:
            self.calls.clear()  # the run ends in this error, which is not that of an earlier call
            raise
        self.calls.append(call)
        self._driver = driver

    async def ended(self, driver: Driver, answers: Iterable[Any]) -> None:
        """Settle the run, which has its answer: the first of `answers` with a usage counts."""
        for call in self.calls:
            await ended(self._ending(driver), call, answers, self._stream_usage)

    async def failed(self, driver: Driver, error: BaseException) -> None:
        """Settle the run, which has ended in the error of its last call."""
        if self.calls:
            call = self.calls.pop()
            self.calls.clear()  # the error may be reported again, and the calls before have succeeded
            await failed(self._ending(driver), call, error, self._stream_usage)

    def _ending(self, driver: Driver) -> Driver:
        """A call that a thread began is ended by a thread: the loop of this hook may be a short-lived one,
        without a connection to the store.
        """
        return driver if self._driver is not THREADS else THREADS


class Runs:
    """The runs that have not ended, by id."""

    def __init__(self) -> None:
        self._open: dict[Hashable, ModelRun] = {}

    def begin(self, run: ModelRun, run_id: Hashable | None = None) -> None:
        """Remember a run, by its own id or by `run_id`."""
        self._open[run.id if run_id is None else run_id] = run
        if len(self._open) > _MOST_OPEN:
            with suppress(RuntimeError):  # another thread has begun or ended one meanwhile
                self.over(next(iter(self._open)))

    def known(self, run_id: Hashable) -> ModelRun | None:
        """The run with this id, if it has not ended."""
        return self._open.get(run_id)

    def over(self, run_id: Hashable) -> ModelRun | None:
        """Forget a run, and return it."""
        run = self._open.pop(run_id, None)
        if run is not None and run.id == run_id:
            run.is_waited_for = False
        return run


async def admit(
    driver: Driver, limit: Limit, request: ModelRequest | None, **waits: Any
) -> Admission | LLMCall:
    """Wait until a call may leave."""
    call = limit.admit(**waits) if isinstance(limit, Policy) else limit.admit(request, **waits)
    await driver.ask(Twin(call.__enter__, call.__aenter__))
    return call


def without_end(limit: Limit, framework: str) -> Limit:
    """The limit, for calls whose end is not always reported; ConfigError if it counts calls in flight."""
    if isinstance(limit, Policy) and limit.permits is not None:
        bound = f"bounds the calls in flight, and {framework} does not tell when each call ends"
        fix = "leave out concurrency=, and bound the calls where they are made"
        raise ConfigError("limit", limit, bound, fix)
    return checked_limit(limit)


def checked_limit(limit: Limit) -> Limit:
    """The limit, or ConfigError."""
    if isinstance(limit, Policy | LLMBudget):
        return limit
    raise ConfigError(
        "limit",
        limit,
        "is neither a policy nor a budget",
        'pass Policy("10/s"), or LLMBudget(requests="500/min", tokens="90k/min")',
    )


def embedded(texts: str | list[str]) -> dict[str, Any]:
    """The input of an embedding model, which answers without tokens."""
    return {"input": texts, "max_tokens": 0}


async def through(
    driver: Driver,
    limit: Limit,
    request: Mapping[str, Any],
    made: Twin[T],
    answers: Callable[[T], Iterable[Any]] = lambda _: (),
) -> T:
    """Make a call when it may leave, and settle it by the usage in its result."""
    call = await admit(driver, limit, request)
    try:
        result = await driver.ask(made)
    except BaseException as error:
        await failed(driver, call, error)
        raise
    await ended(driver, call, answers(result))
    return result


async def ended(
    driver: Driver, call: Admission | LLMCall, answers: Iterable[Any], stream_usage: StreamUsage | None = None
) -> None:
    """Settle a call that has its answer, by the usage in one of `answers`, or else by what was seen of it."""
    if isinstance(call, Admission):
        await driver.ask(Twin(call.leave, call.aleave))
        return
    with log_errors(call):
        usage = next((usage for usage in map(usage_of, answers) if usage is not None), None)
        if usage is not None:
            await settle(driver, call, usage)
        elif stream_usage is not None:
            await settle_seen(driver, call, stream_usage)


async def failed(
    driver: Driver, call: Admission | LLMCall, error: BaseException, stream_usage: StreamUsage | None = None
) -> None:
    """Settle a call that has ended in an error: read what the server said, and give back what cost nothing.

    If an answer had begun, what was seen of it is charged.
    """
    if isinstance(call, LLMCall):
        if stream_usage is not None and isinstance(error, GeneratorExit):
            # The garbage collector may run at any point, so another thread counts and settles.
            process.in_background(run, settle_seen, call, stream_usage)
        elif stream_usage is not None:
            await settle_seen(driver, call, stream_usage)
        await driver.ask(Twin(call.failed, call.afailed), error)
        return
    try:
        if not isinstance(error, GeneratorExit) and (answer := CallOutcome(failure=error).answer) is not None:
            await driver.shielded(partial(observe, driver, call, answer))
    finally:
        await driver.ask(Twin(call.__exit__, call.__aexit__), type(error), error, error.__traceback__)
