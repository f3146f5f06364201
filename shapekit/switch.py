"""The switch: tests of code that is shaped run unshaped.

    >>> from shapekit import Shaper, off
    >>> shaper = Shaper("1/h")
    >>> with off():
    ...     [shaper.reserve().delay for _ in range(3)]
    [0.0, 0.0, 0.0]

`SHAPEKIT_OFF=1` in the environment does the same for a whole process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["off"]


class Switch:
    """Whether calls are shaped, in this process."""

    __slots__ = ("_listeners", "_lock", "_offs", "is_off", "is_plain")

    def __init__(self, *, is_off: bool) -> None:
        self._lock = threading.Lock()
        self._offs = int(is_off)
        self._listeners = 0
        self.is_off = is_off
        self.is_plain = not is_off
        """Whether calls are shaped and nobody listens: one look answers both."""

    def turn(self, step: int) -> None:
        with self._lock:
            self._offs += step
            self._decide()

    def listen(self, step: int) -> None:
        """So many more listen to events."""
        with self._lock:
            self._listeners += step
            self._decide()

    def _decide(self) -> None:
        self.is_off = self._offs > 0
        self.is_plain = not self._offs and not self._listeners


def _from_environment() -> Switch:
    is_off = os.environ.get("SHAPEKIT_OFF", "") not in ("", "0")
    if is_off:
        import logging  # noqa: PLC0415 - only who has something to say loads it

        logging.getLogger("shapekit").warning("SHAPEKIT_OFF is set: calls are not shaped in this process")
    return Switch(is_off=is_off)


SWITCH = _from_environment()


@contextmanager
def off() -> Iterator[None]:
    """Inside, every shaper, policy and shaped function of this process lets calls leave at once.

    In all threads and tasks. Gates still answer: they are asked, and somebody else acts on it. No events are
    told.
    """
    SWITCH.turn(1)
    try:
        yield
    finally:
        SWITCH.turn(-1)
