"""Progress: a line on the terminal's error stream that shows the current measurement and its duration."""

from __future__ import annotations

import sys
import time

_began = time.monotonic()
_topic = ""


def begin(topic: str) -> None:
    """The topic of the next words."""
    global _topic  # noqa: PLW0603 - one line on one terminal
    _topic = topic
    say("begun")


def say(doing: str) -> None:
    """Replace the line on a terminal; elsewhere, write one for each topic."""
    line = f"{time.monotonic() - _began:6.0f} s  {_topic}: {doing}"
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{line}")
    elif doing == "begun":
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def end() -> None:
    """Leave the terminal's line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
