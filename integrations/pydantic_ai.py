"""Pydantic AI: each request to a model takes its tokens and its slot from a budget, and settles what it used.

    agent = Agent("openai:gpt-5", capabilities=[ShapedRequests(budget)])   # a whole agent
    model = ShapedModel("openai:gpt-5", budget)                            # one model

`ShapedConcurrencyLimiter` limits requests in flight over all processes, wherever Pydantic AI takes a limiter.
"""

# The package is not always installed, and types some names differently.
# pyright: reportMissingImports=false, reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from shapekit import errors
from shapekit._adapters.http import translated, twins_of
from shapekit._adapters.model_calls import ended, failed
from shapekit._runtime import process
from shapekit._runtime.drivers import TASKS
from shapekit.errors import ConfigError, ShapekitError
from shapekit.llm import LLMBudget, LLMCall
from shapekit.llm.usage import StreamUsage
from shapekit.policy import Admission, Policy

try:
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.concurrency import AbstractConcurrencyLimiter
    from pydantic_ai.exceptions import ModelAPIError
    from pydantic_ai.messages import BinaryContent, FileUrl, ModelMessage, ModelResponse
    from pydantic_ai.models import KnownModelName, Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.models.wrapper import WrapperModel
    from pydantic_ai.settings import ModelSettings, merge_model_settings
except ImportError as error:
    raise errors.missing("ShapedModel", "pydantic-ai") from error

__all__ = [
    "AccountExhaustedError",
    "QueueFullError",
    "QuotaExhaustedError",
    "ShapedConcurrencyLimiter",
    "ShapedModel",
    "ShapedRequests",
    "StoreUnavailableError",
]


class _UnsentError(ModelAPIError):
    """A request that was not sent. Its arguments are those of the shapekit error that it also is."""

    def __init__(self, *args: Any) -> None:
        message = str(self) if isinstance(self, errors.RateLimitedError) else " ".join(map(str, args))
        ModelAPIError.__init__(self, "", message)
        self.args = args

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {"model_name": self.model_name}


# `retry_after` follows from the decision. `ModelAPIError.__init__` assigns to it, which the setter ignores.
_BY_DECISION: Any = property(
    lambda error: error.decision.retry_after,
    lambda error, value: None,
    doc="Seconds until the call would be admitted.",
)


class QueueFullError(errors.QueueFullError, _UnsentError):
    """`shapekit.QueueFullError` that is also a `pydantic_ai.ModelAPIError`: fallbacks try the next model."""

    retry_after = _BY_DECISION


class QuotaExhaustedError(errors.QuotaExhaustedError, _UnsentError):
    """`shapekit.QuotaExhaustedError` that is also a `pydantic_ai.ModelAPIError`."""

    retry_after = _BY_DECISION


class AccountExhaustedError(errors.AccountExhaustedError, QuotaExhaustedError):
    """`shapekit.AccountExhaustedError` that is also a `pydantic_ai.ModelAPIError`."""


class StoreUnavailableError(errors.StoreUnavailableError, _UnsentError):
    """`shapekit.StoreUnavailableError` that is also a `pydantic_ai.ModelAPIError`."""


_REFUSALS = twins_of(QueueFullError, QuotaExhaustedError, AccountExhaustedError, StoreUnavailableError)


class ShapedModel(WrapperModel):
    """A model whose requests wait for their tokens and their slots, or are refused.

    A stream is settled at its end; if it is left early, at what was seen of it.
    """

    budget: LLMBudget
    """The budget of the requests."""

    def __init__(self, wrapped: Model | KnownModelName | str, budget: LLMBudget) -> None:
        super().__init__(wrapped)
        given: object = budget
        if not isinstance(given, LLMBudget):
            fix = 'write ShapedModel(model, LLMBudget(requests="500/min", tokens="90k/min"))'
            raise ConfigError("budget", budget, "is not an LLMBudget", fix)
        if any(isinstance(model, ShapedModel) and model.budget is budget for model in _within(self.wrapped)):
            bound = "has this budget already: each request would be charged twice"
            raise ConfigError("model", self.wrapped, bound, "give a budget to the agent or to its model")
        self.budget = budget

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Make a request when it may leave."""
        call = await self._admitted(messages, model_settings, model_request_parameters)
        async with _sending(call):
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
        await ended(TASKS, call, _usages(response))
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Make a request that is answered by a stream, when it may leave."""
        call = await self._admitted(messages, model_settings, model_request_parameters)
        async with AsyncExitStack() as stack:
            async with _sending(call):
                stream = await stack.enter_async_context(
                    self.wrapped.request_stream(
                        messages, model_settings, model_request_parameters, run_context
                    )
                )
            process.background_ready()
            # An error here is the caller's, or came after the answer had begun.
            try:
                yield stream
            except BaseException as error:
                await failed(TASKS, call, error, _stream_usage(stream.get()))
                raise
            response = stream.get()
            answers = _usages(response) if response.state == "complete" else ()
            await ended(TASKS, call, answers, _stream_usage(response))

    async def _admitted(
        self, messages: Sequence[ModelMessage], settings: ModelSettings | None, given: ModelRequestParameters
    ) -> LLMCall:
        bounds: Mapping[str, Any] = merge_model_settings(self.wrapped.settings, settings) or {}
        tools = [*given.function_tools, *given.output_tools]
        arguments = {
            "model": self.model_name,
            "messages": [_texts(message) for message in messages],
            "tools": [(tool.name, tool.description or "", tool.parameters_json_schema) for tool in tools],
            "max_tokens": bounds.get("max_tokens"),
        }
        try:
            return await self.budget.aadmit(arguments).__aenter__()
        except ShapekitError as error:
            refusal = translated(error, _REFUSALS)
            if isinstance(refusal, _UnsentError):
                refusal.model_name = self.model_name
            raise refusal from error.__cause__


def _within(model: Any) -> Iterator[Any]:
    """A model and those that it passes requests on to."""
    yield model
    for name in ("wrapped", "models"):
        inner = getattr(model, name, ())
        for one in inner if isinstance(inner, (list, tuple)) else (inner,):
            yield from _within(one)


@asynccontextmanager
async def _sending(call: LLMCall) -> AsyncGenerator[None]:
    """A context until the answer begins: an error in it says what the call cost."""
    try:
        yield
    except BaseException as error:
        await call.afailed(error)
        raise


def _usages(response: ModelResponse) -> Sequence[Mapping[str, Any]]:
    """The usage of an answer, in OpenAI's format; empty if the server reports none."""
    usage = response.usage
    if not usage.input_tokens and not usage.output_tokens:
        return []
    cached, written = usage.cache_read_tokens, usage.cache_write_tokens
    thought = usage.details.get("reasoning_tokens", 0)
    return [
        {
            "prompt_tokens": usage.input_tokens,
            "prompt_tokens_details": {"cached_tokens": cached, "cache_creation_tokens": written},
            "completion_tokens": usage.output_tokens,
            "completion_tokens_details": {"reasoning_tokens": thought},
        }
    ]


def _stream_usage(response: ModelResponse) -> StreamUsage:
    """What has arrived of an answer that comes in pieces."""
    stream_usage = StreamUsage()
    for usage in _usages(response):
        stream_usage.hear({"usage": usage})
    for part in response.parts:
        for content in (getattr(part, "content", None), getattr(part, "args", None)):
            if content:
                stream_usage.hear({"delta": content if isinstance(content, str) else str(content)})
    return stream_usage


def _texts(message: ModelMessage) -> list[Any]:
    """The parts of a message that a model reads."""
    texts: list[Any] = [getattr(message, "instructions", None) or ""]
    for part in message.parts:
        texts += [_text(getattr(part, name, None)) for name in ("tool_name", "content", "args")]
    return texts


def _text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, (BinaryContent, FileUrl)):
        return {"data": ""}  # counted as a picture is
    if isinstance(value, Mapping):
        return {str(name): _text(part) for name, part in value.items()}
    return [_text(part) for part in value] if isinstance(value, (list, tuple)) else str(value)


@dataclass
class ShapedRequests(AbstractCapability[Any]):
    """A capability that makes all requests of an agent use a budget, whichever model serves them.

    A `FallbackModel` is one model to an agent: shape the models in it instead.
    """

    budget: LLMBudget
    """The budget of the requests."""

    def get_wrapper_model(self, model: Model) -> Model | None:
        """The model, shaped."""
        return ShapedModel(model, self.budget)


class ShapedConcurrencyLimiter(AbstractConcurrencyLimiter):
    """Limits requests in flight, over all processes that share the store of a policy with `concurrency`.

    For `Agent(max_concurrency=…)` and `ConcurrencyLimitedModel`. A rate of the policy applies too.
    """

    def __init__(self, policy: Policy) -> None:
        if not isinstance(policy, Policy) or policy.permits is None:
            fix = "write ShapedConcurrencyLimiter(Policy(concurrency=20))"
            raise ConfigError("policy", policy, "is not a policy with concurrency", fix)
        self.policy = policy
        """The policy whose permits are taken."""
        # `release` does not say which one, and any task may call it. All have one key, so any will do.
        self._taken: deque[Admission] = deque()

    async def acquire(self, source: str) -> None:
        """Wait for a permit."""
        try:
            self._taken.append(await self.policy.aadmit().__aenter__())
        except ShapekitError as error:
            raise translated(error, _REFUSALS) from error.__cause__

    def release(self) -> None:
        """Give a permit back."""
        self._taken.popleft().leave_soon()
