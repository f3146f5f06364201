"""LlamaIndex: models and embeddings whose calls wait for their requests and their tokens.

    limiter = ShapedRateLimiter(LLMBudget(requests="500/min", tokens="90k/min", name="gpt", store=url))
    llm = OpenAI(rate_limiter=limiter, max_retries=0)
    embed_model = OpenAIEmbedding(rate_limiter=limiter)

LlamaIndex asks a rate limiter before each call, and does not pass the number of tokens. Its instrumentation
reports calls, answers and failures with the id of a span, which the limiter reads from a context variable of
LlamaIndex.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from shapekit import errors
from shapekit._adapters.model_calls import ModelRun, Runs, admit, embedded, without_end
from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS, Driver, run, running_loop
from shapekit.llm import LLMBudget
from shapekit.policy import Policy

try:
    from llama_index.core.instrumentation import (  # pyright: ignore[reportMissingImports]
        event_handlers,
        get_dispatcher,
        span,
        span_handlers,
    )
    from llama_index.core.instrumentation.events import (  # pyright: ignore[reportMissingImports]
        exception,
        llm,
    )
    from llama_index.core.rate_limiter import BaseRateLimiter  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise errors.missing("ShapedRateLimiter", "llama-index") from error

__all__ = ["ShapedRateLimiter"]

_RUNS = Runs()
_MEDIA = ("image", "audio", "video", "document")


class ShapedRateLimiter(BaseRateLimiter):
    """A rate limiter for LlamaIndex's models and embeddings, over a `Policy` or an `LLMBudget`.

    With a budget, each call reserves the length of its messages or texts and its `max_tokens`, and is charged
    what its answer used. Embeddings do not report usage, so their estimate is charged. Models that share a
    limiter share the limit, and so do processes that share a store.

    A call that would wait longer than `max_wait` raises `QueueFullError`. A policy with `concurrency` is
    refused, because LlamaIndex does not report the end of a stream that is never read.
    """

    def __init__(self, limit: Policy | LLMBudget) -> None:
        self._limit = without_end(limit, "LlamaIndex")
        _listen()

    def acquire(self, num_tokens: int = 0) -> None:
        """Wait until the call may leave; `num_tokens` is for calls outside of LlamaIndex's models."""
        run(self._acquire, num_tokens)

    async def async_acquire(self, num_tokens: int = 0) -> None:
        """`acquire`, awaitable."""
        await self._acquire(TASKS, num_tokens)

    async def _acquire(self, driver: Driver, num_tokens: int) -> None:
        begun = _RUNS.known(span.active_span_id.get())
        if begun is None or begun.limit is not self._limit:
            await admit(driver, self._limit, num_tokens or None)
        elif begun.is_waited_for:
            await begun.admit(driver)
            if not isinstance(begun.request, _Batches):
                begun.is_waited_for = False
                begun.request = dict  # so as not to keep the messages if the end is never reported

    def _begin(
        self, span_id: str, parent_id: str | None, instance: Any, arguments: Mapping[str, Any]
    ) -> None:
        parent = _RUNS.known(parent_id)
        if parent is not None and parent.limit is self._limit and parent.calls:
            # A model may answer a chat by a completion: then the call was admitted already.
            _RUNS.begin(parent, span_id)
        else:
            _RUNS.begin(ModelRun(span_id, self._limit, _arguments_of(instance, arguments)))

    def __repr__(self) -> str:
        return f"ShapedRateLimiter({self._limit!r})"


class _Spans(span_handlers.BaseSpanHandler[Any]):
    """Gets the calls of models' methods with their arguments, and their failures."""

    def new_span(
        self,
        id_: str,
        bound_args: Any,
        instance: Any = None,
        parent_span_id: str | None = None,
        tags: Any = None,
        **_: Any,
    ) -> None:
        limiter = getattr(instance, "rate_limiter", None)
        if isinstance(limiter, ShapedRateLimiter):
            limiter._begin(id_, parent_span_id, instance, bound_args.arguments)  # noqa: SLF001
        elif (parent := _RUNS.known(parent_span_id)) is not None and isinstance(parent.request, _Batches):
            # With `num_workers`, each batch is embedded in its own span.
            _RUNS.begin(parent, id_)

    def prepare_to_exit_span(
        self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **_: Any
    ) -> None:
        known = _RUNS.known(id_)
        goes_on = isinstance(result, GeneratorType | AsyncGeneratorType) and known is not None and known.calls
        # A stream reports its end later, but not for a method that passes on another method's stream.
        if not goes_on:
            _RUNS.over(id_)

    def prepare_to_drop_span(
        self, id_: str, bound_args: Any, instance: Any = None, err: BaseException | None = None, **_: Any
    ) -> None:
        if (known := _RUNS.over(id_)) is not None and err is not None:
            _do(known.failed, err)


class _Events(event_handlers.BaseEventHandler):
    """Gets the input and the answers of models, and the failures of streams."""

    def handle(self, event: Any, **_: Any) -> None:
        if isinstance(event, llm.LLMChatStartEvent | llm.LLMCompletionStartEvent):
            if (begun := _RUNS.known(event.span_id)) is not None and isinstance(begun.request, _Question):
                begun.request.event = event
        elif isinstance(event, llm.LLMChatInProgressEvent | llm.LLMCompletionInProgressEvent):
            if (known := _RUNS.known(event.span_id)) is not None:
                # The server's own message has more than the text, but not every model passes it on.
                piece = event.response
                if not known.heard.hear(piece.raw) and piece.delta:
                    known.heard.hear({"delta": piece.delta})
        elif isinstance(event, llm.LLMChatEndEvent | llm.LLMCompletionEndEvent):
            if (known := _RUNS.over(event.span_id)) is not None and (answer := event.response) is not None:
                _do(known.ended, (answer.raw, answer.additional_kwargs))
        elif isinstance(event, exception.ExceptionEvent) and (known := _RUNS.over(event.span_id)) is not None:
            _do(known.failed, event.exception)


@cache
def _listen() -> None:
    root = get_dispatcher()
    root.add_span_handler(_Spans())
    root.add_event_handler(_Events())


def _do(flow: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
    """Run a flow, on another thread if a loop runs here, as LlamaIndex awaits no handler."""
    if running_loop() is None:
        run(flow, *args)
    else:
        _threads().submit(run, flow, *args)


@cache
def _threads() -> ThreadPoolExecutor:
    """The threads of `_do`; the interpreter does not exit before their work is done."""
    return ThreadPoolExecutor(8, "shapekit-llama-index")


process.in_child(_threads.cache_clear)


class _Question:
    """The input of a language model, once its event has arrived."""

    def __init__(self, model: Any) -> None:
        self.event: Any = None
        self._model = model

    def __call__(self) -> dict[str, Any] | None:
        event = self.event
        if event is None:
            return None
        return {
            "model": getattr(self._model, "model", None),
            "max_tokens": getattr(self._model, "max_tokens", None),
            **event.additional_kwargs,
            "prompt": getattr(event, "prompt", None),
            "messages": [_message(each) for each in getattr(event, "messages", ())],
        }


class _Batches:
    """The inputs of an embedding of many texts, one batch after another."""

    def __init__(self, texts: list[str], size: int) -> None:
        self._batches = iter([texts[start : start + size] for start in range(0, len(texts), size)])

    def __call__(self) -> dict[str, Any]:
        return embedded(next(self._batches, []))


def _arguments_of(model: Any, arguments: Mapping[str, Any]) -> Callable[[], Mapping[str, Any] | None]:
    """Makes the input of a model's method. No event has the texts of an embedding: its arguments do."""
    if "texts" in arguments:
        return _Batches(list(arguments["texts"]), model.embed_batch_size)
    text = arguments.get("text", arguments.get("query"))
    return partial(embedded, text) if isinstance(text, str) else _Question(model)


def _message(message: Any) -> dict[str, Any]:
    return {"role": message.role.value, "content": [*_blocks(message.blocks)], **message.additional_kwargs}


def _blocks(blocks: list[Any]) -> Iterator[Any]:
    """The parts of a message, without the bytes of pictures and the like, which are not counted as text."""
    for block in blocks:
        if block.block_type in _MEDIA:
            yield {"data": ""}
        else:
            yield getattr(block, "text", block)
