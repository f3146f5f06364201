"""Limits: how long to wait, by what a server says is left of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shapekit.feedback.answer import heard, picked, wanted
from shapekit.feedback.dialects import DIALECTS, FAMILIES

__all__ = ["DIALECTS_OF_TOKENS", "hold_s"]

DIALECTS_OF_TOKENS = tuple(FAMILIES)
"""The servers that tell tokens from requests."""


def hold_s(dialect: str, headers: Any, needs: Mapping[str, int], received_at: float) -> float:
    """Seconds until the server has as many tokens again as one more call like this one needs.

    A server's reset is when all is there again, and what is missing comes back evenly until then. It may
    have less left than we believe, because somebody else spends it too.
    """
    waits = [0.0]
    for name in FAMILIES if dialect == "auto" else (dialect,):
        answer = heard(0, picked(headers, wanted(DIALECTS[name].reads)), received_at)
        for family, hint in FAMILIES[name](answer).items():
            need, left, limit, reset_s = needs.get(family, 0), hint.remaining, hint.limit, hint.reset_s
            if left is None or left >= need or not reset_s:
                continue
            spent = 0 if limit is None else limit - left
            waits.append(reset_s if spent < need - left else reset_s * (need - left) / spent)
    return max(waits)
