"""Calls: what each call of one function asks of a policy: whose turn, and how many units."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shapekit.admission import Admission
from shapekit.algorithms.grant import Granted
from shapekit.errors import ConfigError
from shapekit.keys import KeyTemplate
from shapekit.policy import Policy
from shapekit.policy_parts import CostSpec
from shapekit.reservation import Outlook

__all__ = ["Calls", "signature_of"]


class Calls:
    """What each call of one function asks of the policy."""

    __slots__ = ("_bind", "_cost", "key", "policy")

    def __init__(self, policy: Policy, function: Callable[..., Any], key: Any, cost: CostSpec) -> None:
        signature = signature_of(function)
        if isinstance(key, KeyTemplate):
            key = KeyTemplate(key.text, signature.parameters)
        self.policy = policy
        self._bind = signature.bind
        self.key: str | KeyTemplate | Callable[..., str] = key
        self._cost = cost

    def admission(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], cost: CostSpec | None = None
    ) -> Admission:
        """The admission to make one call in; `cost`: instead of what such calls cost otherwise."""
        key = self.key
        if cost is None:
            cost = self._cost
        if isinstance(key, KeyTemplate):
            bound = self._bind(*args, **kwargs)
            bound.apply_defaults()
            key = key(bound.arguments)
        elif not isinstance(key, str):
            key = key(*args, **kwargs)
            if not isinstance(key, str):
                raise ConfigError("key", key, "is not text, and a callable gave it", "return a str")
        if not isinstance(cost, int):
            cost = cost(*args, **kwargs)
            if type(cost) is not int:
                raise ConfigError("cost", cost, "is not whole, and a callable gave it", "return an int")
        return self.policy.admit(key, cost=cost)

    def forecast(self, calls: int = 1, /, *, key: str | None = None) -> Outlook:
        """When `calls` more calls will have left, if they came now and nobody else did."""
        if key is None and not isinstance(self.key, str):
            raise ConfigError("key", None, "depends on the call", 'say whose: forecast(10, key="…")')
        cost = self._cost if isinstance(self._cost, int) else None
        whose = self.key if key is None and isinstance(self.key, str) else key
        return self.policy.forecast(calls, key=whose, cost=cost)

    def taker(self) -> Callable[[], Granted] | None:
        """The reservation of every call, prepared, where all of them ask the same and nobody looks on."""
        policy = self.policy
        plain = policy.enforce and policy.refund_on is None and policy.seats is None
        if plain and isinstance(self.key, str) and isinstance(self._cost, int):
            return self.policy.shaper.taker(self.key, self._cost)
        return None


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """How a function is called, as far as it tells."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # Some built-ins do not tell: then no key can name a parameter.
        return inspect.Signature()
