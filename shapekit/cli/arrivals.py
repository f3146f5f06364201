"""Arrivals: when calls come, made up or from a real trace."""

from __future__ import annotations

import csv
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from shapekit.cli.group import Complaint
from shapekit.errors import ConfigError
from shapekit.rate import SECOND_US, Rate, duration_us, exactly, whole

__all__ = ["Arrivals"]

MOST = 1_000_000
FORMS = 'write poisson:20/s, uniform:20/s, "burst:50 every 10s", or the name of a .csv or .jsonl file'
FIELDS = ("at", "time", "timestamp", "ts", "t")
"""What the instant is called in a file; in a CSV without such a heading it is the first column."""
DEFAULT_LENGTH = "60s"
_BURST = re.compile(r"([0-9]{1,12})\s*every\s*(.+)", re.ASCII)
_LATEST_S = 2**32


class Arrivals(NamedTuple):
    """Instants in ascending order, and the stretch of time that they are from."""

    told: str
    instants_us: list[int]
    start_us: int
    length_us: int

    @classmethod
    def parse(cls, text: str, length: str | None, seed: int) -> Arrivals:
        """What `--arrivals` and `--for` say."""
        kind, _, rest = text.partition(":")
        if kind in _KINDS:
            length_us = duration_us("for", length or DEFAULT_LENGTH)
            chance = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
            try:
                instants = _taken(text, _KINDS[kind](rest, length_us, chance))
            except ConfigError as error:
                raise error.within(f"arrivals {text!r}:") from None
            if not instants:
                raise Complaint(f"arrivals={text!r} bring no call; raise the rate, or give a longer --for")
            return cls(text, instants, 0, length_us)
        path = Path(text)
        read = _READERS.get(path.suffix.lower())
        if read is None:
            raise Complaint(f"arrivals={text!r} is not understood; {FORMS}")
        instants = sorted(_taken(text, _instants(path, read)))
        if not instants:
            raise Complaint(f"{text} holds no instant; write one a line")
        start = instants[0]
        if length is not None:
            end = start + duration_us("for", length)
            return cls(path.name, [at for at in instants if at < end], start, end - start)
        return cls(path.name, instants, start, instants[-1] - start + 1)


def _taken(text: str, instants: Iterator[int]) -> list[int]:
    taken = []
    for instant in instants:
        taken.append(instant)
        if len(taken) > MOST:
            raise Complaint(
                f"arrivals={text!r} are more than {MOST}; lower the rate, or give a shorter --for"
            )
    return taken


def _poisson(text: str, length_us: int, chance: random.Random) -> Iterator[int]:
    rate = Rate.parse(text)
    mean_us = rate.period_us / rate.limit
    at = -mean_us * math.log(1 - chance.random())
    while at < length_us:
        yield int(at)
        at -= mean_us * math.log(1 - chance.random())


def _uniform(text: str, length_us: int, _: random.Random) -> Iterator[int]:
    rate = Rate.parse(text)
    number = 0
    while (at := number * rate.period_us // rate.limit) < length_us:
        yield at
        number += 1


def _burst(text: str, length_us: int, _: random.Random) -> Iterator[int]:
    told = _BURST.fullmatch(text.strip())
    if told is None:
        raise Complaint(f'arrivals={f"burst:{text}"!r} is not understood; write "burst:50 every 10s"')
    calls, every_us = whole("burst", int(told[1])), duration_us("every", told[2])
    for at in range(0, length_us, every_us):
        for _call in range(calls):
            yield at


_KINDS: dict[str, Callable[[str, int, random.Random], Iterator[int]]] = {
    "poisson": _poisson,
    "uniform": _uniform,
    "burst": _burst,
}


def _instants(path: Path, read: Callable[[Any], Iterator[tuple[int, Any]]]) -> Iterator[int]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            for line, value in read(lines):
                instant = _instant_us(value)
                if instant is None:
                    fix = "write epoch seconds from 0 to 2**32, or 2026-11-21T09:00:00Z"
                    raise Complaint(f"{path} line {line}: {value!r} is not an instant; {fix}")
                yield instant
    except UnicodeDecodeError as error:
        raise Complaint(f"{path} is not UTF-8 text ({error.reason}); save it as such") from None


def _of_csv(lines: Any) -> Iterator[tuple[int, Any]]:
    reader = csv.reader(lines)
    column = 0
    try:
        for row in reader:
            if not row:
                continue
            if reader.line_num == 1 and _instant_us(row[0]) is None:
                heads = [head.strip().lower() for head in row]
                column = next((heads.index(field) for field in FIELDS if field in heads), 0)
                continue
            yield reader.line_num, row[column] if column < len(row) else ""
    except csv.Error as error:
        raise Complaint(f"{lines.name} line {reader.line_num} is not CSV: {error}; mend that line") from None


def _of_jsonl(lines: Any) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Complaint(f"{lines.name} line {number} is not JSON: {error}; mend that line") from None
        if isinstance(value, dict):
            field = next((field for field in FIELDS if field in value), None)
            if field is None:
                fields = ", ".join(FIELDS)
                raise Complaint(f"{lines.name} line {number} tells no instant; name it one of {fields}")
            value = value[field]
        yield number, value


_READERS = {".csv": _of_csv, ".jsonl": _of_jsonl}


def _instant_us(value: Any) -> int | None:
    """Epoch seconds, or ISO 8601 (UTC where it names no zone), in microseconds; None for anything else."""
    if isinstance(value, str):
        text = value.strip()
        try:
            value = float(text)
        except ValueError:
            try:
                told = datetime.fromisoformat(text)
                value = (told if told.tzinfo is not None else told.replace(tzinfo=UTC)).timestamp()
            except (ValueError, OverflowError):
                return None
    seconds = exactly(value)
    return None if seconds is None or not 0 <= seconds <= _LATEST_S else round(seconds * SECOND_US)
