"""LangChain: chat models, agents and embeddings whose calls wait for their requests and their tokens.

    limiter = ShapedRateLimiter(LLMBudget(requests="500/min", tokens="90k/min", name="gpt", store=url))
    model = ChatOpenAI(rate_limiter=limiter, callbacks=[limiter.handler], max_retries=0)

LangChain asks a chat model's rate limiter before each call that its cache does not answer, and passes neither
the call nor its usage. Its callbacks get both, at the start of a call (before the limiter is asked) and at
its end. Embeddings and completion models (`BaseLLM`) have no rate limiter: `ShapedEmbeddings` wraps
embeddings, and the page on LangChain shows how to shape completion models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from shapekit import errors
from shapekit._adapters.model_calls import (
    Limit,
    ModelRun,
    Runs,
    admit,
    checked_limit,
    embedded,
    through,
    without_end,
)
from shapekit._runtime.drivers import TASKS, Driver, Twin, run, running_loop
from shapekit.errors import ConfigError, RateLimitedError
from shapekit.llm import LLMBudget
from shapekit.policy import Policy
from shapekit.rate import whole

try:
    from langchain_core.callbacks import BaseCallbackHandler  # pyright: ignore[reportMissingImports]
    from langchain_core.embeddings import Embeddings  # pyright: ignore[reportMissingImports]
    from langchain_core.messages.ai import add_usage  # pyright: ignore[reportMissingImports]
    from langchain_core.rate_limiters import BaseRateLimiter  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise errors.missing("ShapedRateLimiter", "langchain") from error

__all__ = ["ShapedEmbeddings", "ShapedRateLimiter", "shaped_middleware"]


class _Begun(NamedTuple):
    run: ModelRun
    together: int
    """How many runs began together with it: `generate` begins one for each list before it admits any."""


_BEGUN: ContextVar[tuple[_Begun, ...]] = ContextVar("shapekit.langchain", default=())
"""The runs that were begun in this context."""
_RUNS = Runs()


class ShapedRateLimiter(BaseRateLimiter):
    """A rate limiter for chat models, over a `Policy` or an `LLMBudget`.

    With a budget, `callbacks=[limiter.handler]` of the model is needed: it estimates each call's tokens, and
    settles what the answer used. With a policy it is optional, and obeys a server's 429 and its Retry-After.
    Models that share a limiter share the limit, and so do processes that share a store.

    A call that would wait longer than `max_wait` raises `QueueFullError`. A policy with `concurrency` is
    refused, because LangChain does not report the end of a call that was cancelled.
    """

    def __init__(self, limit: Policy | LLMBudget) -> None:
        self._limit = without_end(limit, "LangChain")
        self.handler: BaseCallbackHandler = _Handler(limit)
        """The callback handler that gets each call's input and usage: pass it in the model's `callbacks`."""

    def acquire(self, *, blocking: bool = True) -> bool:
        """Wait until the call may leave. With `blocking=False` return whether it may leave now."""
        return run(self._acquire, blocking)

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """`acquire`, awaitable."""
        return await self._acquire(TASKS, blocking)

    async def _acquire(self, driver: Driver, blocking: bool) -> bool:
        waits: dict[str, Any] = {} if blocking else {"max_wait": 0}
        begun = self._begun()
        try:
            if begun is not None:
                await self._admit(driver, begun, waits)
            elif isinstance(self._limit, Policy):
                await admit(driver, self._limit, None, **waits)
            else:
                bound = "have not said what this call asks, so its tokens are unknown"
                fix = "pass callbacks=[limiter.handler] to the model that has this limiter"
                raise ConfigError("callbacks", None, bound, fix)
        except RateLimitedError:
            if blocking:
                raise
            return False
        return True

    def _begun(self) -> ModelRun | None:
        """The run to admit: of those that began together last, the first that waits."""
        ours = [each for each in _BEGUN.get() if each.run.limit is self._limit]
        together = ours[-ours[-1].together :] if ours else []
        waiting = (each.run for each in (*together, *reversed(ours)) if each.run.is_waited_for)
        return next(waiting, None)

    async def _admit(self, driver: Driver, begun: ModelRun, waits: Mapping[str, Any]) -> None:
        begun.is_waited_for = False  # before any await, as the tasks of a batch share these runs
        try:
            await begun.admit(driver, **waits)
        except RateLimitedError:
            begun.is_waited_for = True
            if not waits:
                _RUNS.over(begun.id)
            raise
        except BaseException:
            _RUNS.over(begun.id)
            raise
        begun.request = dict  # so as not to keep the messages if the end is never reported

    def __repr__(self) -> str:
        return f"ShapedRateLimiter({self._limit!r})"


class _InLoops:
    """A method that is awaitable where an event loop runs; LangChain checks that at each call."""

    def __init__(self, flow: Callable[..., Any]) -> None:
        self._flow = flow

    def __get__(self, handler: Any, _: Any) -> Any:
        if running_loop() is None:
            return partial(run, self._flow.__get__(handler))
        flow = self._flow

        async def awaited(*args: Any, **kwargs: Any) -> None:
            await flow(handler, TASKS, *args, **kwargs)

        return awaited


class _Handler(BaseCallbackHandler):
    """Gets the input and the outcome of each run of a limiter."""

    run_inline = True
    """Otherwise LangChain calls it on another thread, in a copy of the context."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit

    def on_chat_model_start(
        self, serialized: Any, messages: list[list[Any]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Remember a run. LangChain calls this before it asks the limiter."""
        begun = ModelRun((self, run_id), self._limit, partial(_arguments_of, messages[0], kwargs))
        _RUNS.begin(begun)
        waiting = (each for each in _BEGUN.get() if each.run.is_waited_for)
        _BEGUN.set((*waiting, _Begun(begun, kwargs.get("batch_size", 1))))

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **_: Any) -> None:
        """Count the next piece of a stream; the usages of its pieces add up."""
        if (known := _RUNS.known((self, run_id))) is None:
            return
        message = getattr(chunk, "message", None)
        for text in _pieces(token, message):
            known.heard.hear({"delta": text})
        if (usage := getattr(message, "usage_metadata", None)) is not None:
            known.used = add_usage(known.used, usage)
            known.heard.hear({"usage": known.used})

    async def _ended(self, driver: Driver, response: Any, *, run_id: UUID, **_: Any) -> None:
        if (known := _RUNS.over((self, run_id))) is not None:
            await known.ended(driver, _usages(response))

    async def _failed(self, driver: Driver, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        if (known := _RUNS.over((self, run_id))) is not None:
            await known.failed(driver, error)

    on_llm_end: Any = _InLoops(_ended)
    on_llm_error: Any = _InLoops(_failed)


class ShapedEmbeddings(Embeddings):
    """Embeddings whose calls wait for a `Policy`, or for an `LLMBudget` by the length of their texts.

    `embed_documents` makes one call for each `batch_size` texts: pass at most the number of texts that the
    wrapped embeddings send in one request. LangChain's embeddings do not report usage, so the estimate is
    charged.
    """

    def __init__(self, embeddings: Embeddings, limit: Policy | LLMBudget, *, batch_size: int = 100) -> None:
        self._embeddings = embeddings
        self._limit: Limit = checked_limit(limit)
        self._batch_size = whole("batch_size", batch_size)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text."""
        return run(self._embed_documents, texts)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """`embed_documents`, awaitable."""
        return await self._embed_documents(TASKS, texts)

    def embed_query(self, text: str) -> list[float]:
        """The vector of one text."""
        return run(self._embed_query, text)

    async def aembed_query(self, text: str) -> list[float]:
        """`embed_query`, awaitable."""
        return await self._embed_query(TASKS, text)

    async def _embed_documents(self, driver: Driver, texts: list[str]) -> list[list[float]]:
        inner, found = self._embeddings, list[list[float]]()
        for start in range(0, len(texts), self._batch_size):
            batch = texts[start : start + self._batch_size]
            embed = Twin(partial(inner.embed_documents, batch), partial(inner.aembed_documents, batch))
            found += await through(driver, self._limit, embedded(batch), embed)
        return found

    async def _embed_query(self, driver: Driver, text: str) -> list[float]:
        embed = Twin(
            partial(self._embeddings.embed_query, text), partial(self._embeddings.aembed_query, text)
        )
        return await through(driver, self._limit, embedded(text), embed)


def shaped_middleware(limit: Policy | LLMBudget) -> Any:
    """A middleware for agents: model calls wait for a `Policy` or an `LLMBudget`, and are settled.

        agent = create_agent(model, tools, middleware=[shaped_middleware(budget)])

    List it last, so that each attempt of a retry middleware before it waits. The model needs no rate limiter.
    """
    # Its import takes ten times as long as everything else here, and only agents need it.
    try:
        from langchain.agents.middleware import AgentMiddleware  # noqa: PLC0415 # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise errors.missing("shaped_middleware", "langchain") from error

    class ShapedModelCalls(AgentMiddleware):
        @property
        def name(self) -> str:
            # An agent takes only one middleware of each name.
            return f"ShapedModelCalls({limit.name})"

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return run(model_call, request, handler)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await model_call(TASKS, request, handler)

    async def model_call(driver: Driver, request: Any, handler: Any) -> Any:
        made = Twin(partial(handler, request), partial(handler, request))
        return await through(driver, limit, _requested(request), made, _answered)

    checked_limit(limit)
    return ShapedModelCalls()


def _arguments_of(messages: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The input of a chat model, from the arguments of its callback."""
    metadata, params = kwargs.get("metadata") or {}, kwargs.get("invocation_params") or {}
    return {
        "model": metadata.get("ls_model_name"),
        "max_tokens": metadata.get("ls_max_tokens"),
        **params,
        "messages": [_message(each) for each in messages],
    }


def _requested(request: Any) -> dict[str, Any]:
    """The input of an agent's model, from its request."""
    model, system = request.model, request.system_message
    return {
        "model": getattr(model, "model_name", None) or getattr(model, "model", None),
        "max_tokens": getattr(model, "max_tokens", None),
        **request.model_settings,
        "messages": [_message(each) for each in ([] if system is None else [system]) + request.messages],
        "tools": [tool if isinstance(tool, dict) else _tool(tool) for tool in request.tools],
    }


def _message(message: Any) -> dict[str, Any]:
    """The parts of a message that a model reads."""
    content = message.content
    if isinstance(content, list):
        content = [_block(each) for each in content]
    calls = [(call["name"], call["args"]) for call in getattr(message, "tool_calls", ())]
    return {"role": message.type, "content": content, **({"tool_calls": calls} if calls else {})}


def _block(block: Any) -> Any:
    """A part of a message, with the bytes of a picture marked as data, which is not counted as text."""
    if not isinstance(block, dict) or "base64" not in block:
        return block
    return {("data" if name == "base64" else name): part for name, part in block.items()}


def _pieces(content: Any, message: Any) -> Iterator[str]:
    """The texts that a piece of a stream adds to the answer: text, reasoning, arguments of tools."""
    for block in [content] if isinstance(content, str) else content:
        if isinstance(block, str):
            yield block
        else:
            yield from (block[name] for name in ("text", "thinking", "reasoning") if block.get(name))
    yield (getattr(message, "additional_kwargs", None) or {}).get("reasoning_content") or ""
    for call in getattr(message, "tool_call_chunks", ()):
        yield call["args"] or ""


def _tool(tool: Any) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.args}


def _usages(response: Any) -> Iterator[Any]:
    """The places in an LLMResult that may hold its usage."""
    for generations in response.generations:
        for generation in generations:
            yield getattr(getattr(generation, "message", None), "usage_metadata", None)
    yield (response.llm_output or {}).get("token_usage")


def _answered(response: Any) -> Iterator[Any]:
    """The places that may hold the usage of an agent's answer: a (nested) ModelResponse, or a message."""
    answer = getattr(response, "model_response", response)
    for message in getattr(answer, "result", [answer]):
        yield getattr(message, "usage_metadata", None)
