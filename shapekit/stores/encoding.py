"""Encoding: states and programs as text, for stores that several processes share.

A state consists of integers, None and tuples of them, and is read exactly as it was:

>>> packed((2**78, None, (1, ())))
'[302231454903657293676544,null,[1,[]]]'
>>> unpacked(packed((2**78, None, (1, ()))))
(302231454903657293676544, None, (1, ()))

A stored text may be anything, since another program may have written it: here it becomes a state or an error.
A state that does not fit its program shows when the program uses it: that raises one of `MISFITS`.

The description of a program lets other processes read its states:

>>> from shapekit import GCRA
>>> describe(GCRA("10/s", burst=2))
'["gcra",[10,1000000],2]'
>>> revived(describe(GCRA("10/s", burst=2))) == GCRA("10/s", burst=2)
True

It is JSON: the kind, then the fields in order. Equal programs have equal texts. `revived` accepts only texts
that `describe` returns and raises ConfigError for anything else, so a text from outside can describe a limit
and nothing more. Tags are short fingerprints of descriptions, which tell whether the same program has written
a state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from fractions import Fraction
from hashlib import blake2b
from json import JSONDecoder, JSONEncoder
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.compose import AllOf, AnyOf, FirstOf
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA, LeakyBucket, TokenBucket
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.ledger import Ledger
from shapekit.algorithms.overrides import overridden
from shapekit.algorithms.queue.adaptive import AdaptiveQueue
from shapekit.algorithms.queue.queue import LeakyQueue, paced_of
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.errors import ConfigError, ShapekitError
from shapekit.rate import Rate
from shapekit.stores.base import DamagedStateError

__all__ = ["LiveKey"]


_FAR = 2**128
"""Larger than any position or count of any program."""
MISFITS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""The errors of a program on a state that it cannot have written."""

packed: Callable[[Any], str] = JSONEncoder(separators=(",", ":")).encode
_decoded: Callable[[str], tuple[Any, int]] = JSONDecoder().raw_decode


def unpacked(text: str) -> Any:
    """The state in a packed text; ValueError if there is none."""
    plain, end = _decoded(text)
    if end != len(text):
        raise ValueError("text after the state")
    return _frozen(plain)


def _frozen(plain: Any) -> Any:
    if plain.__class__ is list:
        return tuple(
            [part if part.__class__ is int and -_FAR < part < _FAR else _frozen(part) for part in plain]
        )
    if plain is None:
        return None
    raise ValueError("not a state")


def is_misfit(error: BaseException | None) -> TypeGuard[Exception]:
    """Whether a program has failed on a state that it cannot have written, rather than with our own error."""
    return isinstance(error, MISFITS) and not isinstance(error, ShapekitError)


def sound(program: Any, state: Any, now: int, skew: int) -> Any:
    """The state, after a trial whether the program can use it; else DamagedStateError."""
    try:
        if state is not None:
            program.inspect(state)
        if isinstance(program, LeakyQueue):
            program.outlook(state, now, 1, 1, skew)
            for leaf in program.leaves(state, now, skew):
                leaf.peek()
        elif isinstance(program, Concurrency):
            program.standing(state, now)
        else:
            program.forecast(state, now, 1, skew)
    except MISFITS as error:
        raise DamagedStateError(f"a stored state is damaged ({error}); reset the key") from error
    return state


def known_programs(texts: Sequence[str]) -> list[Described]:
    """The programs in stored descriptions, without those that only a later version of shapekit knows."""
    programs = []
    for text in texts:
        with suppress(ConfigError):
            programs.append(revived(text))
    return programs


def tag(description: str) -> int:
    """A number of 32 bits that identifies a description: the same on every host and in every version.

    It is at least 128: text that another program wrote would be read as a smaller number.
    """
    return max(128, int.from_bytes(blake2b(plain_bytes(description), digest_size=4).digest()))


class LiveKey(NamedTuple):
    """A live key, the program that wrote its state, and when it was read."""

    name: str
    """The name of the gate, shaper or policy."""
    part: str
    """The part of a composite whose parts have keys of their own; else empty."""
    key: str
    """The key."""
    program: Described | None
    """The program that wrote the state; None if it is unknown, so that the state cannot be read."""
    state: Any
    """The state, readable by `program`."""
    now_us: int
    """When it was read, on the clock of the store."""
    skew_us: int
    """How far civil time is ahead of that clock."""
    is_damaged: bool = False
    """Whether the value is not a state of its program, or of any."""

    @property
    def shown(self) -> str:
        """`name:key`, or `name:part:key`, as `Store.keys` shows it."""
        return shown(self.name, self.part, self.key)


def plain_text(data: Any) -> str:
    """The text of a name or a key; bytes that are no text, from another program, as escapes."""
    if not isinstance(data, bytes):
        return str(data)
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


def plain_bytes(text: str) -> bytes:
    """The bytes of any text that Python can hold, including lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def shown(name: str, part: str, key: str) -> str:
    """The name, part and key of a state as one text."""
    return ":".join([name, *([part] if part else []), key])


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
"""How a description marks a queue whose limits an operator has set, or that an operator holds."""
_FIX = "pass a text that describe() gave, unchanged"


def describe(program: Any) -> str:
    """The program as text; ConfigError if it is not one of shapekit's."""
    return packed(_plain(program))


def revived(text: str) -> Described:
    """The program that `describe` made this text from."""
    try:
        program = _program(_decoded(text)[0])
        if describe(program) == text:
            return program
    except ConfigError:
        raise
    except (*MISFITS, RecursionError):
        """Not even the right shape."""
    raise ConfigError("description", text, "does not describe a program", _FIX)


def _plain(program: Any) -> list[Any]:
    if type(program) is Ledger:
        return [_LEDGER, _plain(program.limit)]
    if isinstance(program, LeakyQueue) and program.is_set:
        fields = _fields(program)
        return [_HELD, fields, program.held_until_us] if program.is_held else [_SET, fields]
    if type(program) not in _KINDS.values():
        fix = 'share strategies of shapekit, such as GCRA("10/s")'
        raise ConfigError("program", program, "has no description", fix)
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
            raise ValueError("a ledger has a single limit")
        return Ledger(limit)
    if kind in (_SET, _HELD):
        own, *held_until = fields
        queue = _program(own)
        if not isinstance(queue, LeakyQueue) or queue.is_set:
            raise ValueError("only a queue from the code can have overrides")
        return overridden(queue, held_until_us=held_until[0] if kind == _HELD else 0)
    make = _KINDS[kind]
    if make is LeakyQueue:
        return _queue(*fields)
    if make is AdaptiveQueue:
        lowest, highest, burst = fields
        return AdaptiveQueue(Rate.of(*lowest), Rate.of(*highest), burst)
    if make in (AllOf, AnyOf, FirstOf):
        names, parts = fields
        by_name: dict[str, Any] = dict(zip(names, map(_program, parts), strict=True))
        return make(by_name)
    if make is Quota:
        return Quota(**dict(zip(Quota.fields, fields, strict=False)))
    if make in (FixedWindow, SlidingWindow, SlidingWindowLog, Concurrency):
        limit, window_us, *more = fields
        ring = dict(zip(("buckets", "conservative"), more, strict=True)) if more else {}
        return make(limit, timedelta(microseconds=window_us), **ring)
    rate, burst = fields
    return make(Rate.of(*rate), burst)


def _queue(
    rates: list[list[int]], burst: int, pace: str, gates: list[Any], headroom: tuple[int, int]
) -> LeakyQueue:
    parsed = [Rate.of(*rate) for rate in rates]
    strategies: list[Any] = [_program(gate) for gate in gates]
    below: Any = Fraction(*headroom)
    paced = paced_of(parsed, pace)
    # The burst is part of the rate or given separately; without a pace there is no burst.
    beside = None if paced is None or paced.burst is not None else burst
    return LeakyQueue(parsed, beside, pace, strategies, below)
