"""Account: tells an account with nothing left to spend from a rate that is too high.

Both are refusals, often both a 429. A rate limit passes by itself. An exhausted account is refused until its
owner pays, raises a limit, or a new month begins, and only the body of the answer says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["error_of", "says_exhausted"]

PAYMENT_REQUIRED = 402
STATUSES = frozenset({400, PAYMENT_REQUIRED, 403, 429})
"""The statuses with which servers refuse an exhausted account."""
MOST_BYTES = 16_384
"""The longest body that is looked at."""

CODES = frozenset(
    {
        # OpenAI, and servers that speak like it.
        "insufficient_quota",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "project_spend_limit_exceeded",
        "billing_hard_limit_reached",
        "billing_not_active",
        # Anthropic.
        "billing_error",
    }
)
"""The `code` or `type` of an error that says so. No server uses them for a rate limit."""

_CREDIT = "credit balance is too low"
"""Anthropic's message without credit, which often comes as a 400 of the type `invalid_request_error`."""

CHALLENGES = ("www-authenticate", "payment-required")
"""The fields of a 402 that asks for the payment of one request, which a client may make and send with it."""


def error_of(status: int, body: object) -> Mapping[str, Any] | None:
    """The error in a JSON body, as bytes or parsed; None if there is none, or the status is another."""
    if status not in STATUSES:
        return None
    if isinstance(body, bytes):
        if len(body) > MOST_BYTES:
            return None
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    # The SDK of OpenAI keeps the error alone.
    error = body.get("error", body) if isinstance(body, Mapping) else None
    return error if isinstance(error, Mapping) else None


def says_exhausted(error: Mapping[str, Any] | None) -> bool:
    """Whether the error of an answer says that the account has nothing left to spend."""
    if error is None:
        return False
    code, kind, message = (error.get(name) for name in ("code", "type", "message"))
    if any(isinstance(told, str) and told in CODES for told in (code, kind)):
        return True
    return isinstance(message, str) and _CREDIT in message.lower()
