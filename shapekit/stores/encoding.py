"""States as text: integers, None and tuples of them, exactly as they were.

What is read may be anything: another program may have written it. Here it becomes a state or an error.

>>> packed((2**78, None, (1, ())))
'[302231454903657293676544,null,[1,[]]]'
>>> unpacked(packed((2**78, None, (1, ()))))
(302231454903657293676544, None, (1, ()))

Whether a program can go on from it shows where it does. What then goes wrong is one of `MISFITS`.

Tags: short fingerprints of descriptions, to tell whether a state was written by the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from json import JSONDecoder, JSONEncoder
from typing import Any, NamedTuple, TypeGuard

from shapekit.algorithms.description import Described, revived
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.usage import leaves_of
from shapekit.errors import ConfigError, ShapekitError, StoreUnavailableError

__all__ = ["LiveKey"]

_FAR = 2**128
"""No position and no count of any program comes near."""
MISFITS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""How a program fails on what it has not written."""

packed: Callable[[Any], str] = JSONEncoder(separators=(",", ":")).encode
_decoded: Callable[[str], Any] = JSONDecoder().decode


def unpacked(text: str) -> Any:
    """The state that was packed; ValueError if this text is none."""
    return _frozen(_decoded(text))


def _frozen(plain: Any) -> Any:
    if plain.__class__ is list:
        return tuple(
            [part if part.__class__ is int and -_FAR < part < _FAR else _frozen(part) for part in plain]
        )
    if plain is None:
        return None
    raise ValueError("not a state")


def is_misfit(error: BaseException | None) -> TypeGuard[Exception]:
    """Whether this is how a program fails on what it has not written: no complaint of ours."""
    return isinstance(error, MISFITS) and not isinstance(error, ShapekitError)


def sound(program: Any, state: Any, now: int, skew: int) -> Any:
    """The state, once the program has told of it what comes next; else StoreUnavailableError."""
    try:
        if state is not None:
            program.inspect(state)
        if isinstance(program, LeakyQueue):
            program.outlook(state, now, 1, 1, skew)
            for leaf in leaves_of(program, state, now, skew):
                leaf.peek()
        elif isinstance(program, Concurrency):
            program.standing(state, now)
        else:
            program.forecast(state, now, 1, skew)
    except MISFITS as error:
        raise StoreUnavailableError(f"a stored state is damaged ({error}); reset the key") from error
    return state


def known_programs(texts: Sequence[str]) -> list[Described]:
    """The programs that stored descriptions tell of; without those that a version left that knows more."""
    programs = []
    for text in texts:
        with suppress(ConfigError):
            programs.append(revived(text))
    return programs


def tag(description: str) -> int:
    """A number of 32 bits that stands for a description: the same on every host and in every version."""
    return int.from_bytes(blake2b(plain_bytes(description), digest_size=4).digest())


class LiveKey(NamedTuple):
    """A live key, the program that wrote its state, and the time it was seen at."""

    name: str
    """The name of the gate, shaper or policy."""
    part: str
    """The part of a composite, where each has a key of its own; else empty."""
    key: str
    """The key."""
    program: Described | None
    """None where it is not known what wrote the state; then it cannot be read."""
    state: Any
    """The state; `program` can read it."""
    now_us: int
    """When it was seen, on the clock of the store."""
    skew_us: int
    """How far civil time is ahead."""

    @property
    def shown(self) -> str:
        """`name:key`, or `name:part:key`, as `Store.keys` shows it."""
        return shown(self.name, self.part, self.key)


def plain_text(data: Any) -> str:
    """The text of a name or a key; what is none, because another program wrote it, in escapes."""
    if not isinstance(data, bytes):
        return str(data)
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")


def plain_bytes(text: str) -> bytes:
    """The bytes of any text that Python can hold, also such as is not proper unicode."""
    return text.encode("utf-8", "surrogatepass")


def shown(name: str, part: str, key: str) -> str:
    """Where a state is, in one text."""
    return ":".join([name, *([part] if part else []), key])
