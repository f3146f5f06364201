"""Progress line: how far a loop is, said on one line that is redrawn, or in lines of the log.

>>> told = Told(370, 1_000, 37.0, 63.0, 12.0, 0.0, 1_795_305_600.0)
>>> in_log(told)
'370/1,000 (37%), 37 s, 10.0/s, held 12 s, ETA 1 min 3 s'
>>> on_terminal(told, 79)
'370/1,000 (37%)  [#######.............]  37 s  10.0/s  held 12 s  ETA 1 min 3 s'
>>> on_terminal(told, 30)
'370/1,000 (37%)  held 12 s'
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import threading
from datetime import UTC, datetime
from typing import NamedTuple, TextIO

from shapekit.rate import SECOND_US

__all__ = ["Log", "Terminal", "Told", "in_log", "on_terminal", "opened"]

MINUTE, HOUR, DAY = 60, 3_600, 86_400
CENTURY = 36_525 * DAY
_UNITS = ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s"))
_LEAST_BAR, _WIDEST_BAR = 10, 30
_NARROWEST = 2

log = logging.getLogger("shapekit.progress")


class Told(NamedTuple):
    """How far a loop is, in items and seconds."""

    done: int
    total: int | None
    elapsed: float
    eta: float | None
    """How long until the last item is through; None if nobody knows."""
    held: float
    """How long the key is held still; 0 if it is not."""
    continues: float
    """How long until a spent quota lets the next call leave; 0 if none is spent."""
    at: float
    """When this was told, in epoch seconds."""
    ending: str | None = None
    """How it ended, empty for well; None while it goes on."""


class Terminal:
    """One line, redrawn in place; the last one stays."""

    is_heard = True
    is_live = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = 0

    def pause_us(self, elapsed_us: int) -> int:
        """How long until the next line."""
        return SECOND_US // 10

    def tell(self, told: Told) -> None:
        """Draw the line over the last one."""
        try:
            # A character more would wrap the line. Where stdout is no terminal, stderr tells the width.
            width = max(_NARROWEST, shutil.get_terminal_size(_size_of(self._stream)).columns) - 1
            text = on_terminal(told, width)
            over = " " * (min(self._drawn, width) - len(text))
            self._stream.write(f"\r{text}{over}" + ("\n" if told.ending is not None else ""))
            self._stream.flush()
            self._drawn = len(text)
        except (OSError, ValueError):
            # Whoever looked on is gone. That is no reason for the loop to end.
            pass

    def close(self) -> None:
        """Let the next one draw."""
        _DRAWN.release()


class Log:
    """Lines of the log, ten seconds apart at first, then further and further, at most ten minutes."""

    is_live = False

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_heard(self) -> bool:
        """Whether anybody wants to hear it."""
        return log.isEnabledFor(logging.INFO)

    def pause_us(self, elapsed_us: int) -> int:
        """How long until the next line."""
        return min(max(elapsed_us, 10 * SECOND_US), 10 * MINUTE * SECOND_US)

    def tell(self, told: Told) -> None:
        """Log the line; its record carries the numbers as `progress`."""
        log.info("%s: %s", self._name, in_log(told), extra={"progress": told._asdict()})

    def close(self) -> None:
        """There is nothing to let go of."""


_DRAWN = threading.Lock()
"""Held by whoever draws: a terminal has one line for this, and a second loop goes to the log."""


def opened(name: str) -> Terminal | Log:
    """Where to tell it: on the terminal that stderr is, or else in the log, under `name`."""
    stream = sys.stderr
    if _is_terminal(stream) and _DRAWN.acquire(blocking=False):
        return Terminal(stream)
    return Log(name)


def in_log(told: Told) -> str:
    """All that there is to say."""
    return ", ".join(text for _, text in _parts(told))


def on_terminal(told: Told, width: int) -> str:
    """As much as fits."""
    parts = _parts(told)
    while len(parts) > 1 and _length(parts) > width:
        parts.remove(max(parts))
    room = min(width - _length(parts) - 4, _WIDEST_BAR)
    if told.total and room >= _LEAST_BAR and told.ending is None:
        full = min(room, room * told.done // told.total)
        parts.insert(1, (0, f"[{'#' * full}{'.' * (room - full)}]"))
    return "  ".join(text for _, text in parts)[:width]


def _parts(told: Told) -> list[tuple[int, str]]:
    """What to say, from left to right; what bears the highest number is left out first."""
    if told.total is None:
        parts = [(0, f"{told.done:,} done")]
    else:
        share = f" ({100 * told.done // told.total}%)" if told.total else ""
        parts = [(0, f"{told.done:,}/{told.total:,}{share}")]
    parts.append((3, ("" if told.ending is None else "in ") + span(told.elapsed)))
    if told.done and told.elapsed > 0:
        parts.append((4, _rate(told.done / told.elapsed)))
    if told.ending is not None:
        return [*parts, (1, told.ending)] if told.ending else parts
    if told.continues > told.held:
        near = told.continues < HOUR
        parts.append((1, f"continues {'in ' if near else ''}{_then(told.continues, told.at, HOUR)}"))
    elif told.held > 0:
        parts.append((1, f"held {span(math.ceil(told.held))}"))
    if told.eta is not None:
        parts.append((2, f"ETA {_then(told.eta, told.at, DAY)}"))
    return parts


def _length(parts: list[tuple[int, str]]) -> int:
    return sum(len(text) + 2 for _, text in parts) - 2


def _rate(per_second: float) -> str:
    for seconds, unit in ((1, "s"), (MINUTE, "min"), (HOUR, "h")):
        if per_second * seconds >= 1:
            return f"{per_second * seconds:,.1f}/{unit}"
    return f"{per_second * DAY:,.1f}/d"


def _then(seconds: float, at: float, near: int) -> str:
    """How long it is until then if that is near, else the date, as clocks here show it."""
    if seconds < near:
        return span(math.ceil(seconds))
    if seconds > CENTURY:
        return "in more than a century"
    now, then = (datetime.fromtimestamp(instant, UTC).astimezone() for instant in (at, at + seconds))
    day = "" if then.date() == now.date() else f"{then.day} {then:%b} "
    return day + ("" if then.year == now.year else f"{then.year} ") + f"{then:%H:%M}"


def span(seconds: float) -> str:
    """A span in its two largest units, rounded down to whole seconds.

    >>> span(0.9), span(96), span(7_200), span(100_000)
    ('0 s', '1 min 36 s', '2 h', '1 d 3 h')
    """
    left = int(seconds)
    for large, large_unit, small, small_unit in _UNITS:
        if left >= large:
            more = left % large // small
            return f"{left // large:,} {large_unit}" + (f" {more} {small_unit}" if more else "")
    return f"{left} s"


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # it was closed
        return False


def _size_of(stream: TextIO) -> tuple[int, int]:
    try:
        return os.get_terminal_size(stream.fileno())
    except OSError:
        return (80, 24)
