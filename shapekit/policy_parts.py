"""Policy parts: what a policy is told in several forms, brought into the one that it goes by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from shapekit.algorithms.concurrency import MOST_SEATS, Concurrency
from shapekit.algorithms.quota import Quota
from shapekit.errors import ConfigError
from shapekit.keys import KeySpec, KeyTemplate
from shapekit.rate import whole

if TYPE_CHECKING:
    from shapekit.feedback import Answer, Feedback, ServerHint

__all__ = [
    "CostSpec",
    "FeedbackSpec",
    "RefundSpec",
    "checked_cost",
    "checked_feedback",
    "checked_key",
    "concurrency_from",
    "never_counted",
    "quotas_from",
]

CostSpec: TypeAlias = int | Callable[..., int]
FeedbackSpec: TypeAlias = "str | Feedback | Callable[[Answer], ServerHint | None]"
RefundSpec: TypeAlias = (
    type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]
)


def quotas_from(quota: Quota | str | None, spread: bool) -> tuple[Quota, ...]:
    """The quota that was told, or none."""
    if type(spread) is not bool:
        raise ConfigError("spread", spread, "is neither True nor False", "pass a bool")
    if spread and not isinstance(quota, str):
        bound, fix = "has no quota to spread", 'write quota="1_000_000/month"'
        if quota is not None:
            bound, fix = "comes on top of a Quota, which says it itself", "write Quota(…, spread=True)"
        raise ConfigError("spread", spread, bound, fix)
    if quota is None:
        return ()
    if isinstance(quota, str):
        try:
            return (Quota(quota, spread=spread),)
        except ConfigError as error:
            raise error.within("quota") from None
    if not isinstance(quota, Quota):
        raise ConfigError("quota", quota, "is not a quota", 'write "1_000_000/month", or a Quota')
    return (quota,)


def concurrency_from(concurrency: Concurrency | int | None) -> Concurrency | None:
    """How many calls may be in flight, and for how long a worker is believed in; None if nothing was told."""
    if concurrency is None or isinstance(concurrency, Concurrency):
        return concurrency
    return Concurrency(whole("concurrency", concurrency, most=MOST_SEATS))


def checked_key(key: KeySpec) -> str | KeyTemplate | Callable[..., str]:
    """A key that never changes, a parsed template, or the callable."""
    if isinstance(key, str):
        template = KeyTemplate(key)
        return template if template.fields else template({})
    if callable(key):
        return key
    raise ConfigError("key", key, "is neither text nor callable", 'write "{user_id}", or a callable')


def checked_cost(cost: CostSpec) -> int | Callable[..., int]:
    """A whole number of units, or the callable."""
    if callable(cost):
        return cost
    return whole("cost", cost)


def never_counted(refund_on: RefundSpec | None) -> Callable[[BaseException], bool] | None:
    """Tells the errors after which a call never counted; None if there are none."""
    if refund_on is None:
        return None
    kinds = refund_on if isinstance(refund_on, tuple) else (refund_on,)
    if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        return partial(_is_one_of, kinds)
    if callable(refund_on) and not isinstance(refund_on, type):
        return refund_on
    raise ConfigError(
        "refund_on", refund_on, "is neither exceptions nor a predicate", "write refund_on=ConnectionError"
    )


def checked_feedback(feedback: Any) -> Any:
    """What reads answers, as it was told."""
    if feedback is None or feedback == "hold" or callable(feedback):
        return feedback
    from shapekit.feedback import Feedback  # noqa: PLC0415 - whoever has one has loaded it

    if isinstance(feedback, Feedback):
        return feedback
    raise ConfigError(
        "feedback", feedback, "is not a kind of feedback", 'write "hold", None, or Feedback("github")'
    )


def _is_one_of(kinds: tuple[Any, ...], error: BaseException) -> bool:
    return isinstance(error, kinds)
