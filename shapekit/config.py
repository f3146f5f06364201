"""Specs: policies written as plain values, as configuration files hold them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from shapekit.algorithms.adaptive.bounds import Adaptive
from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.leaky_bucket import LeakyBucket
from shapekit.algorithms.quota.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.algorithms.token_bucket import TokenBucket
from shapekit.errors import ConfigError

STRATEGIES: dict[str, Callable[..., Algorithm[Any]]] = {
    strategy.kind: strategy
    for strategy in (GCRA, TokenBucket, FixedWindow, SlidingWindow, SlidingWindowLog, LeakyBucket, Quota)
}
FIELDS = (
    *("rate", "burst", "pace", "quota", "spread", "gates", "key", "cost", "max_wait", "headroom", "enforce"),
    *("name", "adaptive", "concurrency", "prefetch"),
)
"""The arguments of a policy that plain values can say."""


def fields_of(table: object) -> dict[str, Any]:
    """The arguments of a policy from a table; gates and quota may be tables themselves."""
    if not isinstance(table, Mapping):
        raise ConfigError("fields", table, "is not a table", 'pass a dict such as {"rate": "10/s"}')
    for field in table:
        if field not in FIELDS:
            raise ConfigError("field", field, "is unknown", f"use some of {', '.join(FIELDS)}")
    fields = dict(table)
    if isinstance(fields.get("quota"), Mapping):
        fields["quota"] = strategy_of("quota", {"strategy": "quota", **fields["quota"]})
    if "adaptive" in fields:
        fields["adaptive"] = _adaptive(fields["adaptive"])
    if isinstance(told := fields.get("concurrency"), Mapping):
        fields["concurrency"] = _concurrency(told)
    if "gates" in fields:
        gates = fields["gates"]
        if not isinstance(gates, list | tuple):
            raise ConfigError(
                "gates", gates, "is not a list", 'write gates = [{strategy = "gcra", rate = "10/s"}]'
            )
        fields["gates"] = tuple(strategy_of(f"gates[{index}]", gate) for index, gate in enumerate(gates))
    return fields


def _adaptive(table: object) -> Adaptive:
    if isinstance(table, Adaptive):
        return table
    if not isinstance(table, Mapping) or set(table) != set(Adaptive.fields):
        fix = 'write {min = "1/s", max = "50/s"}'
        raise ConfigError("adaptive", table, "is no table of min and max", fix)
    try:
        return Adaptive(**table)
    except ConfigError as error:
        raise error.within("adaptive") from None


def _concurrency(table: Mapping[str, Any]) -> Concurrency:
    if not {"limit"} <= set(table) <= {"limit", "lease"}:
        raise ConfigError(
            "concurrency", table, "is no table of limit and lease", 'write {limit = 20, lease = "30s"}'
        )
    try:
        return Concurrency(**table)
    except ConfigError as error:
        raise error.within("concurrency") from None


def strategy_of(place: str, table: object) -> Algorithm[Any]:
    """The strategy that a table such as `{strategy = "gcra", rate = "10/s", burst = 20}` means."""
    if isinstance(table, Algorithm):
        return table
    known = ", ".join(STRATEGIES)
    if not isinstance(table, Mapping):
        raise ConfigError(place, table, "is not a table", 'write {strategy = "gcra", rate = "10/s"}')
    arguments = dict(table)
    kind = arguments.pop("strategy", None)
    if not isinstance(kind, str) or kind not in STRATEGIES:
        raise ConfigError(f"{place}.strategy", kind, "is unknown", f"use one of {known}")
    make = STRATEGIES[kind]
    parameters = inspect.signature(make).parameters
    if "rate" in arguments and "rate" not in parameters and "limit" not in arguments:
        # Windows take a rate as their limit; in a file, a rate is a rate.
        arguments["limit"] = arguments.pop("rate")
    for name, value in arguments.items():
        if name not in parameters:
            raise ConfigError(
                f"{place}.{name!s:.80}", value, f"means nothing to {kind}", f"use {', '.join(parameters)}"
            )
    missing = [
        name for name, given in parameters.items() if given.default is given.empty and name not in arguments
    ]
    if missing:
        raise ConfigError(f"{place}.{missing[0]}", None, "is missing", f"{kind} needs it")
    try:
        return make(**arguments)
    except ConfigError as error:
        raise error.within(place) from None
