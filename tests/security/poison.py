"""Values that an attacker may have written into a store: values that are nearly states, and others."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from shapekit import ConfigError
from shapekit.algorithms.base import CHECK, DEBIT, FORECAST, PEEK, REFUND, Operation
from shapekit.algorithms.inflight import ENTER, KEEP, LEAVE, WATCH
from shapekit.algorithms.queue.adaptive import STATED, SUCCEEDED, THROTTLED
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import (
    CANCEL,
    CANCEL_MANY,
    CONFIRM,
    HOLD,
    LOOK,
    MARK,
    RESERVE,
    RESERVE_MANY,
    RESUME,
    SETTLE,
)
from shapekit.stores.base import DamagedStateError
from shapekit.testing.timelines import GROUPS, Trial

NOW_US = 1_700_000_000_000_000
LIES: tuple[Any, ...] = (
    *(0, 1, -1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 10**30, -(10**30), 10**400, NOW_US),
    *(1.5, -0.0, 1e300, -1e300, float("nan"), float("inf"), float("-inf"), True, False, None),
    *("", "x", "5", "1e5", "nan", "}{", "\0", [], [[]], [1], {}, {"a": 1}, [None] * 3, [0] * 300),
)
GARBAGE = (
    *(b"", b"\xc0", b"\xc1", b"\x80", b"[", b"plain text", b"\xff" * 9, b"\x91" * 5_000, b"\0" * 100_000),
    *(b"\xdd\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff", b"\xc7\x05\x01hello", b"cos\nsystem\n(S'true'\ntR."),
    b"\x80\x04\x95\x1c\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94\x8c\x04exec\x94\x93\x94.",
)
"""Not even MessagePack, more than one value of it, and pickles."""
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    CHECK: (1,), PEEK: (), FORECAST: (1,), REFUND: (1, None), DEBIT: (1,),
    RESERVE: ((1, 10**6, 7),), LOOK: (), CONFIRM: (), HOLD: (10**6, 7), MARK: (10**6, 7),
    RESUME: (0,), RESERVE_MANY: (((1, 10**6, 7),), (3, 10**6, 7)),
    THROTTLED: (10**5, 10**6, 7), SUCCEEDED: (3, 10**5, 7), STATED: (2**29, 10**5, 7),
    ENTER: (7, 50, 1), WATCH: (7,), LEAVE: (7, 2), KEEP: (7, 40, (1, 3)),
}  # fmt: skip
"""The arguments of each operation. The owner 7 is the one in the state."""
QUEUES = (RESERVE, LOOK, CONFIRM, RESERVE_MANY, HOLD, MARK, RESUME, CANCEL, SETTLE, CANCEL_MANY)
ADAPTIVE = tuple(
    one for one in (*QUEUES, THROTTLED, SUCCEEDED, STATED) if one not in (RESERVE_MANY, CANCEL_MANY)
)
ROOMS = (ENTER, LOOK, WATCH, LEAVE, KEEP)
GATES = (CHECK, PEEK, FORECAST, REFUND, DEBIT)


def trials() -> list[Trial]:
    """Programs of every kind."""
    return [trial for made in GROUPS.values() for trial in made()]


def lied(value: Any, chance: random.Random) -> Any:
    """A value with a lie somewhere in it."""
    if isinstance(value, list) and value and chance.random() < 0.85:
        value, place = list(value), chance.randrange(len(value))
        match chance.randrange(8):
            case 0:
                del value[place]
            case 1:
                value.insert(place, chance.choice(LIES))
            case 2:
                value = value * 2
            case _:
                value[place] = lied(value[place], chance)
        return value
    if type(value) is int and chance.random() < 0.4:
        return value + chance.choice([1, -1, 10**6, -(10**6), 10**12, -(10**12), 10**20])
    return chance.choice(LIES)


class Victim:
    """A program in a store, after some calls, with every operation on it."""

    def __init__(self, store: Any, trial: Trial, chance: random.Random) -> None:
        self._store = store
        self._chance = chance
        operations = operations_of(trial)
        self._asks = {operation: store.bind("victim", trial.program, operation) for operation in operations}
        parts = len(getattr(trial.program, "parts", ()))
        self._key = tuple("k" * (part + 1) for part in range(parts)) if trial.apart else "k"
        self._grants = []
        if trial.is_queue and chance.random() < 0.3:
            self._asks[MARK](self._key, 10**7, 7)
        for number in range(1, 1 + chance.randrange(1, 6)):
            if trial.is_queue:
                self._grants.append(Grant(*self._asks[RESERVE](self._key, (1, None, 7))))
            elif trial.is_room:
                self._asks[ENTER](self._key, 7, number, 1)
                self._asks[ENTER](self._key, 8, number, 1)
            else:
                self._asks[CHECK](self._key, 1)
        if trial.is_adaptive:
            self._asks[THROTTLED](self._key, 10**5, 10**6, 7)
        if trial.is_queue and chance.random() < 0.5:
            self._asks[CANCEL](self._key, self._grants[0])

    def ask_all(self) -> int:
        """Make every call; returns how many were refused. No other error may be raised: it is no outage."""
        refused = 0
        for operation, ask in self._asks.items():
            if operation == CANCEL:
                args: tuple[Any, ...] = (self._grants[-1],)
            elif operation == CANCEL_MANY:
                args = (tuple(self._grants),)
            elif operation == SETTLE:
                args = ((self._grants[-1], 3, 7),)
            else:
                args = ARGUMENTS[operation]
            try:
                answer = ask(self._key, *args)
            except (ConfigError, DamagedStateError) as error:
                refused += 1
                assert len(str(error)) < 2_000
            else:
                assert operation == LOOK or is_answer(operation, answer), (operation, answer)
        list(self._store.survey())
        assert all(isinstance(key, str) for key in [*self._store.keys("")])
        return refused


def operations_of(trial: Trial) -> tuple[Operation, ...]:
    """Every operation of a program."""
    if trial.is_room:
        return ROOMS
    if trial.is_queue:
        return ADAPTIVE if trial.is_adaptive else QUEUES
    return GATES


def is_answer(operation: Operation, answer: Any) -> bool:
    """Whether a caller can continue from it: it has as many numbers as it needs."""
    if operation in (CHECK, PEEK, REFUND, DEBIT):
        is_valid = answer.binding is None or isinstance(answer.binding, str)
        return is_valid and _are_numbers((*answer[:6], answer.delay_us), 7)
    if operation is RESERVE:
        return _is_granted(answer)
    if operation is RESERVE_MANY:
        standing, granted = answer
        return is_answer(CONFIRM, standing) and all(map(_is_granted, granted))
    if operation is CONFIRM:
        return _are_numbers(answer, 7 if len(answer) == 7 else 5)
    if operation in (FORECAST, THROTTLED, SUCCEEDED, STATED):
        return _are_numbers(answer, 3)
    if operation is ENTER:
        return _are_numbers(answer, 2)
    if operation in (WATCH, LEAVE, KEEP):
        return 1 <= len(answer) <= 20_001 and _are_numbers(answer, len(answer))
    return _are_numbers((answer,), 1)


def _is_granted(answer: Any) -> bool:
    """The same of a slot, or of a refusal."""
    _, wait, departs_at, held, denial, *numbers, undo, _, _ = answer
    is_valid = denial is None or is_answer(CHECK, denial)
    return is_valid and _are_numbers((wait, departs_at, held, *numbers, *undo), 11)


def _are_numbers(values: Any, count: int) -> bool:
    return len(values) == count and all(isinstance(value, int) for value in values)


# MessagePack, as far as states need it


def packed(value: Any) -> bytes:
    """The value as another program would write it."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if 0 <= value < 128:
            return bytes([value])
        if -(2**63) <= value < 2**63:
            return b"\xd3" + struct.pack(">q", value)
        if 0 < value < 2**64:
            return b"\xcf" + struct.pack(">Q", value)
        value = float("inf")
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return b"\xdb" + struct.pack(">I", len(value)) + value
    if isinstance(value, dict):
        pairs = b"".join(packed(key) + packed(inner) for key, inner in value.items())
        return b"\xdf" + struct.pack(">I", len(value)) + pairs
    return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(packed, value))


def unpacked(data: bytes) -> list[Any]:
    """The consecutive values that a script has written."""
    values, at = [], 0
    while at < len(data):
        value, at = _next(data, at)
        values.append(value)
    return values


def _next(data: bytes, at: int) -> tuple[Any, int]:
    mark, at = data[at], at + 1
    if mark < 0x80 or mark >= 0xE0:
        return (mark if mark < 0x80 else mark - 256), at
    if 0x90 <= mark < 0xA0 or mark == 0x80:
        return _list(data, at, mark & 15 if mark >= 0x90 else 0)
    if 0xA0 <= mark < 0xC0:
        return data[at : at + (mark & 31)], at + (mark & 31)
    if mark in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[mark], at
    if mark == 0xCB:
        return struct.unpack(">d", data[at : at + 8])[0], at + 8
    if mark == 0xCA:
        return struct.unpack(">f", data[at : at + 4])[0], at + 4
    if 0xCC <= mark <= 0xD3:
        width = 1 << ((mark - 0xCC) % 4)
        return int.from_bytes(data[at : at + width], signed=mark >= 0xD0), at + width
    if mark in (0xDC, 0xDD):
        width = 2 if mark == 0xDC else 4
        return _list(data, at + width, int.from_bytes(data[at : at + width]))
    width = 1 << (mark - 0xD9)
    size = int.from_bytes(data[at : at + width])
    return data[at + width : at + width + size], at + width + size


def _list(data: bytes, at: int, size: int) -> tuple[list[Any], int]:
    values = []
    for _ in range(size):
        value, at = _next(data, at)
        values.append(value)
    return values, at


def as_text(value: Any) -> str:
    """The value as JSON, with everything that Python's reader takes and JSON does not have."""
    return json.dumps(value)
