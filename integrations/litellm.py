"""LiteLLM: each attempt at a model takes its tokens and its slot from a budget, and settles what it used.

    budget = LLMBudget(requests="500/min", tokens="90k/min", name="model", store="redis://localhost")
    litellm.callbacks = [ShapedCalls(budget, max_wait="5s")]

For asynchronous calls: `litellm.acompletion` and its like, and those of a `Router`, where each deployment has
the budget's limits to itself, and retries and fallbacks are attempts like any other. LiteLLM has no such hook
for synchronous calls: use `budget.wrap(litellm.completion)`.
"""

# The package is not always installed, and types some names differently.
# pyright: reportMissingImports=false, reportPrivateImportUsage=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from shapekit import errors
from shapekit._adapters.http import ResponseView, UnsentError, translated, twins_of
from shapekit._adapters.model_calls import ended, failed
from shapekit._runtime.drivers import TASKS
from shapekit.errors import ConfigError, ShapekitError
from shapekit.feedback.dialects import OURS
from shapekit.llm import LLMBudget, LLMCall
from shapekit.llm.call import log_errors
from shapekit.llm.usage import StreamUsage, usage_of
from shapekit.rate import AS_CONFIGURED, SECOND_US, Duration, duration_us

try:
    import httpx
    import litellm
    from litellm.integrations.custom_logger import CustomLogger
except ImportError as error:
    raise errors.missing("ShapedCalls", "litellm") from error

__all__ = [
    "AccountExhaustedError",
    "CostExceedsLimitError",
    "QueueFullError",
    "QuotaExhaustedError",
    "ShapedCalls",
    "StoreUnavailableError",
]

_LONGEST_COOLDOWN_S = 60
"""A router leaves a deployment out for as long as its error says. Longer waits are left to `ShapedCalls`,
which also notices when they are over."""


class _LimitedError(UnsentError, litellm.RateLimitError):
    """An attempt that was not sent."""

    def __init__(self, *args: Any) -> None:
        retry_after = cast("errors.RateLimitedError", self).retry_after
        wait_s = min(_LONGEST_COOLDOWN_S, max(1, math.ceil(retry_after)))
        headers = {"retry-after": str(wait_s), OURS: cast("errors.RateLimitedError", self).code}
        litellm.RateLimitError.__init__(
            self,
            str(self),
            llm_provider="",
            model="",
            response=httpx.Response(429, headers=headers),
            category=litellm.exceptions.RateLimitErrorCategory.LITELLM_RATE_LIMIT,
            headers=headers,
        )
        self.args = args
        self.__dict__.pop("code", None)  # set by OpenAI's class, from a body that does not exist


class QueueFullError(errors.QueueFullError, _LimitedError):
    """`shapekit.QueueFullError` that is also a `litellm.RateLimitError`."""


class QuotaExhaustedError(errors.QuotaExhaustedError, _LimitedError):
    """`shapekit.QuotaExhaustedError` that is also a `litellm.RateLimitError`."""


class AccountExhaustedError(errors.AccountExhaustedError, QuotaExhaustedError):
    """`shapekit.AccountExhaustedError` that is also a `litellm.RateLimitError`."""


class CostExceedsLimitError(errors.CostExceedsLimitError, UnsentError, litellm.BadRequestError):
    """`shapekit.CostExceedsLimitError` that is also a `litellm.BadRequestError`: no retry would help."""

    def __init__(self, *args: Any) -> None:
        errors.CostExceedsLimitError.__init__(self, *args)
        litellm.BadRequestError.__init__(self, str(self), model="", llm_provider="")
        self.args = args
        self.__dict__.pop("code", None)


class StoreUnavailableError(errors.StoreUnavailableError, UnsentError, litellm.APIConnectionError):
    """`shapekit.StoreUnavailableError` that is also a `litellm.APIConnectionError`.

    A router keeps using the deployment after it.
    """

    def __init__(self, *args: Any) -> None:
        litellm.APIConnectionError.__init__(self, " ".join(map(str, args)), llm_provider="", model="")
        self.args = args
        self.__dict__.pop("code", None)


_REFUSALS = twins_of(
    QueueFullError, QuotaExhaustedError, AccountExhaustedError, CostExceedsLimitError, StoreUnavailableError
)
_ASKING = frozenset(("acompletion", "atext_completion", "aresponses", "anthropic_messages", "aembedding"))
"""The calls that use tokens; LiteLLM's hooks see others, too, such as those for files."""
_MODEL_FIRST = frozenset(("acompletion", "aembedding"))
"""The calls whose first argument is the model."""
_TEXTS = ("messages", "prompt", "input")
_SENT_BY_SERVER = "llm_provider-"
"""LiteLLM's prefix for the names of a server's headers."""


class ShapedCalls(CustomLogger):
    """A callback of LiteLLM that makes each attempt wait for its tokens and its slot, or refuses it.

    - `budget`: the limits of a deployment. Each deployment of a router has its own, by its id; without a
      router, each model has.
    - `max_wait`: an attempt that would wait longer is refused; before that, a router looks for a deployment
      that can send the call in time. Without it, the budget's own bound refuses, and a router does not look.
    """

    def __init__(self, budget: LLMBudget, *, max_wait: Duration | None = None) -> None:
        super().__init__()
        given: object = budget
        if not isinstance(given, LLMBudget):
            fix = 'write ShapedCalls(LLMBudget(requests="500/min", tokens="90k/min"))'
            raise ConfigError("budget", budget, "is not an LLMBudget", fix)
        self.budget = budget
        """The budget that the attempts take from."""
        self._max_wait_s = (
            None if max_wait is None else duration_us("max_wait", max_wait, least=0) / SECOND_US
        )
        # By LiteLLM's object for the request: an attempt whose end is never reported is collected with it.
        self._calls: WeakKeyDictionary[Any, LLMCall] = WeakKeyDictionary()
        self._requests: WeakValueDictionary[str, Any] = WeakValueDictionary()

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[Any],
        messages: Any,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: Any = None,
    ) -> list[Any]:
        """The deployments that can send the call within `max_wait`; all if none can, to get the refusal."""
        if self._max_wait_s is None or len(healthy_deployments) < 2:
            return healthy_deployments
        arguments = {**(request_kwargs or {}), "messages": messages}
        ready = [each for each in healthy_deployments if await self._is_ready(each, arguments)]
        return ready or healthy_deployments

    async def _is_ready(self, deployment: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
        key = _key_of(deployment["litellm_params"] | {"model_info": deployment.get("model_info")})
        try:
            outlook = await self.budget.aforecast(request=arguments, key=key)
        except errors.CostExceedsLimitError:
            return False
        except errors.StoreUnavailableError:
            return True  # the attempt will raise the error
        return self._max_wait_s is None or outlook.first_in <= self._max_wait_s

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> None:
        """Called before an attempt is sent: wait, or refuse."""
        kind = getattr(call_type, "value", call_type)
        # A call with fallbacks sends nothing: each of its attempts is a call, and comes here by itself.
        if kind not in _ASKING or (kind == "acompletion" and kwargs.get("fallbacks")):
            return
        request = kwargs["litellm_logging_obj"]
        # Without the object that is the weak key of `_calls`, which the budget would keep alive.
        arguments = {name: value for name, value in kwargs.items() if name != "litellm_logging_obj"}
        # Positional arguments are not among them.
        if arguments.keys().isdisjoint(_TEXTS):
            arguments["messages"] = request.messages
        if "model" not in arguments:
            arguments["model"] = _first_of(request, call_type)
        max_wait = AS_CONFIGURED if self._max_wait_s is None else self._max_wait_s
        try:
            call = await self.budget.aadmit(arguments, key=_key_of(arguments), max_wait=max_wait).__aenter__()
        except ShapekitError as error:
            refusal = translated(error, _REFUSALS)
            if "model_group" not in (kwargs.get("metadata") or {}):  # a router calls this before each retry
                _refuse_retries(request, refusal)
            raise refusal from error.__cause__
        self._calls[request] = call
        self._requests[kwargs["litellm_call_id"]] = request

    async def async_post_call_success_deployment_hook(
        self, request_data: dict[str, Any], response: Any, call_type: Any
    ) -> None:
        """Called after an answer: settle its usage, and observe its headers."""
        if (call := self._ended(request_data)) is None:
            return
        with log_errors(call):
            await call.asettle(response)
            headers = (getattr(response, "_hidden_params", None) or {}).get("additional_headers") or {}
            sent = {name.removeprefix(_SENT_BY_SERVER): value for name, value in headers.items()}
            await call.aobserve(ResponseView(200, sent))

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Mapping[str, Any],
        exception: Any,
        call_type: Any,
        fallback_depth: int | None = None,
    ) -> None:
        """Called after an error: observe it, and give back what the attempt did not cost."""
        if (call := self._ended(request_data)) is None:
            return
        # Some releases leave the server's headers out of the response. The exception here is a copy.
        headers = getattr(exception, "litellm_response_headers", None)
        if headers and not getattr(getattr(exception, "response", None), "headers", None):
            exception.response = ResponseView(exception.status_code, headers)
        await call.afailed(exception)

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Called after the end of a stream, whose usage no other hook gets."""
        if not kwargs.get("stream") or (call := self._ended(kwargs)) is None:
            return
        options = (
            kwargs.get("stream_options") or kwargs.get("optional_params", {}).get("stream_options") or {}
        )
        if options.get("include_usage"):
            await ended(TASKS, call, [response_obj])
        else:
            # If the server does not report the usage, LiteLLM counts what it can see of the answer.
            await ended(TASKS, call, (), _counted(response_obj))

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Called after a stream has failed: LiteLLM has counted what had arrived."""
        if kwargs.get("stream") and (call := self._ended(kwargs)) is not None:
            seen = _counted({"usage": kwargs.get("combined_usage_object")})
            await failed(TASKS, call, kwargs["exception"], seen)

    def _ended(self, data: Mapping[str, Any]) -> LLMCall | None:
        """The call of an attempt that has ended; None if that was reported before."""
        request = data.get("litellm_logging_obj") or self._requests.get(data.get("litellm_call_id", ""))
        return None if request is None else self._calls.pop(request, None)


def _refuse_retries(request: Any, refusal: Exception) -> None:
    """Let an error end its call: LiteLLM makes the retries of `num_retries` without calling its hooks."""
    handler = request.async_failure_handler

    async def refusing(*args: Any, **kwargs: Any) -> None:
        await handler(*args, **kwargs)
        raise refusal  # LiteLLM raises it at once, without retries

    request.async_failure_handler = refusing


def _counted(answer: Any) -> StreamUsage | None:
    """The usage that LiteLLM has counted for a stream, with tokens from a cache; None if there is none."""
    if usage_of(answer) is None:
        return None
    counted = StreamUsage()
    counted.hear(answer)
    return counted


def _first_of(request: Any, call_type: Any) -> Any:
    """The model that was passed by position; LiteLLM takes the first argument for it, whatever that is."""
    if getattr(call_type, "value", call_type) in _MODEL_FIRST:
        return request.model
    fix = "write model=… in this call"
    raise ConfigError("model", None, "was passed by position, which LiteLLM does not tell its hooks", fix)


def _key_of(arguments: Mapping[str, Any]) -> str:
    """The id of the router's deployment, or the model."""
    deployment = (arguments.get("model_info") or {}).get("id")
    return str(arguments["model"] if deployment is None else deployment)
