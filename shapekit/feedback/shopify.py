"""Shopify: `used/max` in a header of the REST API, and what a GraphQL body says of its cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shapekit.feedback.answer import Answer
from shapekit.feedback.hint import ServerHint

__all__ = ["shopify", "shopify_graphql"]

_MOST = 1e15
_SLOWEST = 1e-6
"""Points, and points a second, beyond which it is no shop that speaks."""

_USED_OF = re.compile(r"[ \t]*([0-9]{1,9})/([0-9]{1,9})[ \t]*(?:,|\Z)")


def shopify(answer: Answer) -> ServerHint | None:
    """`X-Shopify-Shop-Api-Call-Limit: 32/40`: says how full the bucket is, not when it will have leaked."""
    match = _USED_OF.match(answer.fields.get("x-shopify-shop-api-call-limit", ""))
    if not match:
        return None
    used, limit = int(match[1]), int(match[2])
    return ServerHint(remaining=max(0, limit - used), limit=limit)


def shopify_graphql(cost_extension: Mapping[str, Any] | None) -> ServerHint | None:
    """What `extensions.cost` of a GraphQL body says: hold until a query like this one is affordable.

    Such a body comes with status 200 and no header tells of it, so only whoever has read it can hand
    it on. Malformed costs are None. The hold is as the server has it: see `Feedback.bounded`.

        >>> shopify_graphql({
        ...     "requestedQueryCost": 101,
        ...     "throttleStatus": {"maximumAvailable": 1000.0, "currentlyAvailable": 1, "restoreRate": 50.0},
        ... })
        ServerHint(hold_s=2.0, remaining=1, limit=1000, window_s=None, reset_s=19.98, scope=None)
    """
    asked = _number(cost_extension, "requestedQueryCost")
    status = cost_extension.get("throttleStatus") if isinstance(cost_extension, Mapping) else None
    most = _number(status, "maximumAvailable")
    left = _number(status, "currentlyAvailable")
    rate = _number(status, "restoreRate")
    if most is None or left is None or rate is None or rate < _SLOWEST:
        return None
    # What costs more than there can ever be is not worth waiting for.
    missing = (asked or 0.0) - left if (asked or 0.0) <= most else 0.0
    return ServerHint(
        hold_s=max(0.0, missing / rate),
        remaining=int(left),
        limit=int(most),
        reset_s=max(0.0, (most - left) / rate),
    )


def _number(fields: object, name: str) -> float | None:
    value = fields.get(name) if isinstance(fields, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST else None
