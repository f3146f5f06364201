"""Wrapping: puts the calls of a function that asks a language model under a budget.

Streams are passed on unchanged, and settled as soon as they report their usage. A stream that breaks off, is
closed early or is dropped has not reported it: it is settled at its input and the part of its answer that was
read.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from types import SimpleNamespace, UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS, Driver, Twin, run, running_loop
from shapekit.decorator import signature_of
from shapekit.errors import ConfigError
from shapekit.llm.call import LLMCall, log_errors, settle, settle_seen
from shapekit.llm.usage import StreamUsage, TokenUsage, usage_of

_END: Any = object()


class _Listened:
    """A stream whose items are read for their usage; every other attribute is the inner stream's."""

    def __init__(self, inner: Any, call: LLMCall) -> None:
        self._inner = inner
        self._call = call
        self._items = Twin(partial(next, inner, _END), partial(anext, inner, _END))
        self._stream_usage = StreamUsage()
        self._settled: TokenUsage | None = None
        self._is_first = True
        self._is_over = False
        self._loop = running_loop()
        process.background_ready()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def _next(self, driver: Driver) -> Any:
        """The next item, or `_END`; the usage is settled once it is known."""
        try:
            item = await driver.ask(self._items)
        except BaseException as error:
            if self._is_first and isinstance(error, Exception):
                self._is_over = True
                await driver.ask(Twin(self._call.failed, self._call.afailed), error)
            elif not isinstance(error, GeneratorExit):
                await self._abort(driver)
            raise
        self._is_first = False
        if item is not _END:
            with log_errors(self._call):
                self._stream_usage.hear(item)
        usage = self._stream_usage.usage if item is _END or self._stream_usage.is_final else None
        if usage is not None and usage != self._settled:
            self._settled = usage
            await settle(driver, self._call, usage)
        if item is _END:
            await self._abort(driver)
        return item

    async def _abort(self, driver: Driver) -> None:
        """The stream is read no further: if it has not reported its usage, settle what was read of it."""
        if driver is TASKS and running_loop() is not self._loop:
            return  # the collector has ended the reader after its loop was closed: see `__del__`
        if driver is not TASKS and isinstance(sys.exception(), GeneratorExit):
            self._leave()
            return
        is_over, self._is_over = self._is_over, True
        if not is_over and self._settled is None:
            await settle_seen(driver, self._call, self._stream_usage)

    def _leave(self) -> None:
        """`_abort` for a finalizer, which may run at any point: the background thread settles."""
        is_over, self._is_over = self._is_over, True
        if not is_over and self._settled is None:
            process.in_background(run, settle_seen, self._call, self._stream_usage)

    async def end(self, driver: Driver) -> Any:
        """Close the inner stream, with `aclose` or `close`."""
        close = "aclose" if driver is TASKS and hasattr(self._inner, "aclose") else "close"
        try:
            closing = getattr(self._inner, close)()
            return await closing if driver is TASKS else closing
        finally:
            await self._abort(driver)

    def __del__(self) -> None:
        if not getattr(self, "_is_over", True):
            self._leave()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"


class SettledStream(_Listened):
    """An iterator over the answer, and a context manager."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        item = run(self._next)
        if item is _END:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        if hasattr(self._inner, "__enter__"):
            self._inner.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> Any:
        try:
            if hasattr(self._inner, "__exit__"):
                return self._inner.__exit__(kind, error, trace)
            return self._inner.close()
        finally:
            run(self._abort)

    def close(self) -> Any:
        """Close the stream; it is settled at what was read of it."""
        return run(self.end)


class AsyncSettledStream(_Listened):
    """An asynchronous iterator over the answer, and an asynchronous context manager."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        item = await self._next(TASKS)
        if item is _END:
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Self:
        if hasattr(self._inner, "__aenter__"):
            await self._inner.__aenter__()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> Any:
        try:
            if hasattr(self._inner, "__aexit__"):
                return await self._inner.__aexit__(kind, error, trace)
            return await self._inner.aclose()
        finally:
            if isinstance(error, GeneratorExit):
                self._leave()
            else:
                await self._abort(TASKS)

    async def aclose(self) -> Any:
        """Close the stream; it is settled at what was read of it."""
        return await self.end(TASKS)

    close = aclose


_LATER = 'write: {} budget.admit({{"messages": …}}) as call, client.messages.stream(…) as stream'
_EACH_TURN = "wrap client.messages.create, and call it for each turn"
_AWAITED = "wrap the coroutine function itself"
_NOTHING = TokenUsage(0, 0)


def wrapped(function: Any, admit: Callable[[Mapping[str, Any]], LLMCall]) -> Any:
    """The function with each call admitted by its arguments and settled by its answer."""
    kinds = _annotated(function)
    if any(hasattr(kind, "until_done") for kind in kinds):
        raise ConfigError("function", function, "returns a runner that sends a request a turn", _EACH_TURN)
    if (entered := _manages(function, kinds)) is not None:
        raise _later(function, entered)
    parameters, is_exact = signature_of(function), _takes_what_it_says(function)
    send: Any = _with_headers(function) or function

    def admission(args: tuple[Any, ...], kwargs: dict[str, Any]) -> LLMCall:
        arguments = _arguments(parameters, args, kwargs)
        if arguments is None and is_exact:
            function(*args, **kwargs)  # raises the TypeError about its arguments
        return admit(kwargs if arguments is None else arguments)

    async def settled(driver: Driver, call: LLMCall, result: Any, kwargs: dict[str, Any]) -> Any:
        """The answer of the function, after its headers and its usage were read."""
        is_awaited = driver is TASKS
        response = _bearer(result) if send is function else result
        if send is not function:
            result = result.parse()
            if is_awaited and inspect.isawaitable(result):
                result = await result
        stream: _Listened | None = None
        if hasattr(result, "__anext__" if is_awaited else "__next__"):
            stream = (AsyncSettledStream if is_awaited else SettledStream)(result, call)
        if response is not None:
            try:
                with log_errors(call):
                    await driver.ask(Twin(call.observe, call.aobserve), response)
            except BaseException as error:
                if stream is not None:  # the caller does not have it yet, and so cannot close it
                    await driver.given_back(error, partial(stream.end, driver))
                raise
        if stream is not None:
            return stream
        if not is_awaited and (mistake := _sends_later(function, result)) is not None:
            await settle(driver, call, _NOTHING)
            raise mistake
        with log_errors(call):
            read = _read(result, kwargs)
            usage = usage_of(await read if is_awaited and inspect.isawaitable(read) else read)
            if usage is not None:
                await settle(driver, call, usage)
        return result

    def call(*args: Any, **kwargs: Any) -> Any:
        with admission(args, kwargs) as call:
            return run(settled, call, send(*args, **kwargs), kwargs)

    async def acall(*args: Any, **kwargs: Any) -> Any:
        async with admission(args, kwargs) as call:
            return await settled(TASKS, call, await send(*args, **kwargs), kwargs)

    async def agenerate(*args: Any, **kwargs: Any) -> Any:
        call = await admission(args, kwargs).__aenter__()
        stream = AsyncSettledStream(function(*args, **kwargs), call)
        try:
            # From here on, the stream handles errors itself.
            async for item in stream:
                yield item
        finally:
            await stream.aclose()

    made: Any = call
    if _is(inspect.isasyncgenfunction, function):
        made = agenerate
    elif _is(inspect.iscoroutinefunction, function):
        made = acall
    return update_wrapper(made, function)


def _is(kind: Callable[[Any], bool], function: Any) -> bool:
    """Whether a function is of a kind: itself, the function behind its decorators, or its `__call__`."""
    behind = inspect.unwrap(function)
    return any(kind(candidate) for candidate in (function, behind, getattr(type(function), "__call__", None)))  # noqa: B004


def _takes_what_it_says(function: Any) -> bool:
    """Whether arguments that do not fit the signature are certainly refused.

    A Python function refuses them. A decorated function that only shows the signature of another one may take
    more, and a built-in may have no signature: their calls are admitted like any others.
    """
    called = function if inspect.isroutine(function) else type(function).__call__
    is_plain = inspect.isfunction(getattr(called, "__func__", called))
    return is_plain and not any(
        hasattr(layer, name) for layer in (function, called) for name in ("__wrapped__", "__signature__")
    )


def _arguments(parameters: inspect.Signature, args: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call by name; None if they do not fit the signature."""
    try:
        bound = parameters.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if parameters.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        else:
            arguments[name] = value
    return arguments


def _with_headers(function: Any) -> Any:
    """The SDK's `with_raw_response` form of a method, whose result has headers and parses to the same answer.

    It has to wrap the method: functions of other libraries with this name may return something else.
    """
    raw = getattr(getattr(function, "__self__", None), "with_raw_response", None)
    twin = getattr(raw, getattr(function, "__name__", ""), None)
    return twin if getattr(twin, "__wrapped__", None) == function else None


def _bearer(result: Any) -> Any:
    """The object with status and headers: the result itself, or the response that it was read from."""
    for candidate in (result, getattr(result, "response", None)):
        if hasattr(candidate, "headers") and hasattr(candidate, "status_code"):
            return candidate
    return None


def _read(result: Any, kwargs: Mapping[str, Any]) -> Any:
    """The answer in a raw response that the caller asked for. A stream in it is for the caller to parse."""
    if hasattr(result, "http_response") and callable(getattr(result, "parse", None)):
        return None if kwargs.get("stream") is True else result.parse()
    return result


def _sends_later(function: Any, result: Any) -> ConfigError | None:
    """The error for a result whose request is only sent later, and so could not be settled here."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        return ConfigError("function", function, "returns what has to be awaited", _AWAITED)
    entered = _entered_by(type(result))
    return None if entered is None or usage_of(result) is not None else _later(function, entered)


def _later(function: Any, entered: str) -> ConfigError:
    return ConfigError("function", function, "returns a context that sends later", _LATER.format(entered))


def _entered_by(kind: Any) -> str | None:
    """How a context manager is entered; None for anything else."""
    if hasattr(kind, "__enter__"):
        return "with"
    return "async with" if hasattr(kind, "__aenter__") else None


def _manages(function: Any, kinds: Sequence[Any]) -> str | None:
    """How the context manager is entered that a function is annotated to return; None without one.

    Such a function is refused before it is called: an asynchronous manager of the SDKs holds a coroutine that
    only the manager can await or close.
    """
    is_async = _is(inspect.iscoroutinefunction, function)
    resource = getattr(getattr(function, "__wrapped__", None), "__self__", None)
    streaming = getattr(resource, "with_streaming_response", None)
    if streaming is not None and getattr(streaming, getattr(function, "__name__", ""), None) is function:
        return "async with" if is_async else "with"
    sends_now = ("__await__", "__iter__", "__aiter__", "usage")
    ways = {None if any(hasattr(kind, name) for name in sends_now) else _entered_by(kind) for kind in kinds}
    return ways.pop() if len(ways) == 1 and not is_async else None


def _annotated(function: Any) -> list[Any]:
    """The classes that a function is annotated to return: several for a union, none if that is unknown."""
    behind = inspect.unwrap(function)
    annotation = getattr(behind, "__annotations__", {}).get("return")
    if annotation is None:
        return []
    try:
        # Only this annotation: others may need names that are imported only for type checkers.
        only = SimpleNamespace(__annotations__={"return": annotation})
        kind = get_type_hints(only, getattr(behind, "__globals__", {}))["return"]
    except Exception:
        return []
    union = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return [get_origin(part) or part for part in union]
