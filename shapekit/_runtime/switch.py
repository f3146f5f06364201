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
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["off"]


class Switch:
    """Whether calls are shaped in this process, and whether there are listeners.

    It takes no lock and counts nothing: each `off` and each shaper that has listeners is an entry of `loud`,
    and an empty one says that all is plain. So a shaper that is collected, at whatever line of whatever
    thread, is gone from it by one call of C.
    """

    __slots__ = ("loud", "offs")

    def __init__(self, *, is_off: bool) -> None:
        self.offs: dict[object, None] = {}
        self.loud: dict[object, None] = {}
        if is_off:
            self.loud[self] = self.offs[self] = None

    @property
    def is_off(self) -> bool:
        """Whether calls leave unshaped."""
        return bool(self.offs)


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

    In all threads and tasks. Gates still answer, since their callers act on the answer. There are no events.
    """
    this = object()
    try:
        SWITCH.loud[this] = SWITCH.offs[this] = None
        yield
    finally:
        try:
            SWITCH.offs.pop(this, None)
        finally:
            SWITCH.loud.pop(this, None)
