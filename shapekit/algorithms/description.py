"""Description: a program as text, so that its state in a shared store can be read elsewhere.

    >>> from shapekit import GCRA
    >>> text = describe(GCRA("10/s", burst=2))
    >>> text
    '["gcra",[10,1000000],2]'
    >>> revived(text) == GCRA("10/s", burst=2)
    True

The text is JSON: the kind, then the fields in order. Equal programs have equal texts. `revived` accepts only
what `describe` returns and raises ConfigError for anything else, so a text from outside can describe a limit
and nothing more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any, TypeAlias

from shapekit.algorithms.adaptive.queue import AdaptiveQueue
from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.compose import AllOf, AnyOf, FirstOf
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA, LeakyBucket, TokenBucket
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.ledger import Ledger
from shapekit.algorithms.overrides import overridden
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.quota.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.errors import ConfigError
from shapekit.rate import Rate

Described: TypeAlias = Algorithm[Any] | LeakyQueue | Concurrency

_KINDS: dict[str, Callable[..., Described]] = {
    program.kind: program
    for program in (
        *(GCRA, TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, SlidingWindowLog, Quota),
        *(AllOf, AnyOf, FirstOf, LeakyQueue, AdaptiveQueue, Concurrency),
    )
}
_LATER = {"spread": False}
"""Fields added later, with their defaults; a default is left out, so that older texts stay the same."""
_LEDGER = "ledger"
_SET, _HELD = "set", "held"
"""A queue with the numbers of an operator."""
_FIX = "pass a text that describe() gave, unchanged"


def describe(program: Any) -> str:
    """The program as text; ConfigError if it is not one of shapekit's."""
    return json.dumps(_plain(program), separators=(",", ":"))


def revived(text: str) -> Described:
    """The program that `describe` made this text from."""
    try:
        program = _program(json.loads(text))
        if describe(program) == text:
            return program
    except ConfigError:
        raise
    except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError):
        """Not even the right shape."""
    raise ConfigError("description", text, "does not describe a program", _FIX)


def _plain(program: Any) -> list[Any]:
    if type(program) is Ledger:
        return [_LEDGER, _plain(program.limit)]
    if isinstance(program, LeakyQueue) and program.is_set:
        return [_HELD if program.is_held else _SET, _fields(program)]
    if type(program) not in _KINDS.values():
        raise ConfigError(
            "program", program, "has no description", 'share strategies of shapekit, such as GCRA("10/s")'
        )
    return _fields(program)


def _fields(program: Any) -> list[Any]:
    fields = [(field, getattr(program, field)) for field in program.fields]
    values = (value for field, value in fields if field not in _LATER or value != _LATER[field])
    return [program.kind, *(_plain_value(value) for value in values)]


def _plain_value(value: Any) -> Any:
    if isinstance(value, Rate):
        return [value.limit, value.period_us, *([] if value.burst is None else [value.burst])]
    if isinstance(value, Fraction):
        return [value.numerator, value.denominator]
    if isinstance(value, tuple):
        return [_plain_value(part) for part in value]
    return _plain(value) if isinstance(value, Algorithm) else value


def _program(plain: Sequence[Any]) -> Described:
    kind, *fields = plain
    if kind == _LEDGER:
        (limit,) = map(_program, fields)
        if not isinstance(limit, Algorithm) or isinstance(limit, (Ledger, AllOf, AnyOf, FirstOf)):
            raise ValueError("a ledger is of one limit")
        return Ledger(limit)
    if kind in (_SET, _HELD):
        (queue,) = map(_program, fields)
        if not isinstance(queue, LeakyQueue) or queue.is_set:
            raise ValueError("only a queue of code can be set")
        return overridden(queue, is_held=kind == _HELD)
    make = _KINDS[kind]
    if make is LeakyQueue:
        return _queue(*fields)
    if make is AdaptiveQueue:
        lowest, highest, burst = fields
        return AdaptiveQueue(Rate.of(*lowest), Rate.of(*highest), burst)
    if make in (AllOf, AnyOf, FirstOf):
        return _composite(make, *fields)
    if make is Quota:
        limit, per, *where = fields
        names = ("offset_minutes", "tz", "week_start", "anchor_day", "spread")
        return Quota(limit, per, **dict(zip(names, where, strict=False)))
    if make in (FixedWindow, SlidingWindow, SlidingWindowLog, Concurrency):
        limit, window_us, *more = fields
        ring = dict(zip(("buckets", "conservative"), more, strict=True)) if more else {}
        return make(limit, timedelta(microseconds=window_us), **ring)
    rate, burst = fields
    return make(Rate.of(*rate), burst)


def _composite(make: Callable[..., Described], names: list[str], parts: list[Any]) -> Described:
    return make({name: _program(part) for name, part in zip(names, parts, strict=True)})


def _queue(
    rates: list[list[int]], burst: int, pace: str, gates: list[Any], headroom: tuple[int, int]
) -> LeakyQueue:
    told = [Rate.of(*rate) for rate in rates]
    strategies: list[Any] = [_program(gate) for gate in gates]
    below: Any = Fraction(*headroom)
    paced = min(told, key=lambda rate: rate.period_us, default=None) if pace == "smooth" else None
    # The burst is part of the rate or given separately; without a pace there is none.
    beside = None if paced is None or paced.burst is not None else burst
    return LeakyQueue(told, beside, pace, strategies, below)
