"""Keyboard: the keys that somebody pressed, without Enter, while something else is going on."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

try:
    import termios
    import tty
except ImportError:  # Windows: there Ctrl-C alone is heard
    termios = tty = None  # type: ignore[assignment]

__all__ = ["keyboard"]

_AT_ONCE = 1_024


@contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """Gives a function that waits for so many seconds at most, and returns the keys, or an empty text."""
    if termios is None or tty is None or not sys.stdin.isatty():
        yield _nobody
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(seconds: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), _AT_ONCE).decode(errors="replace") if ready else ""


def _nobody(seconds: float) -> str:
    time.sleep(seconds)
    return ""
