"""Virtual time for a whole process: what the pytest fixture `shapekit_time` is made of.

Inside `virtual_time`, every SystemClock shows the time of one ManualClock, so that a policy which a module
made when it was imported needs no clock of its own. What the process has counted and learned is forgotten
when virtual time begins and when it ends: a test finds all limits as new, and leaves them as new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import ref

from shapekit.clock import ManualClock, replacing_system_clocks

__all__ = ["VIRTUAL", "forgets", "virtual_time"]

T = TypeVar("T")


class Virtual:
    """Whether time is virtual in this process."""

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = False


VIRTUAL = Virtual()

_ALL: dict[int, tuple[ref[Any], Callable[[Any], None]]] = {}
"""By id: a store need not be hashable."""


def forgets(one: T, forget: Callable[[T], None]) -> None:
    """Call `forget(one)` where virtual time begins and ends, as long as it lives."""
    _ALL[id(one)] = ref(one, partial(_ALL.pop, id(one))), forget


@contextmanager
def virtual_time() -> Iterator[ManualClock]:
    """Inside, system clocks show virtual time, from 0 on; it jumps whenever all threads and tasks sleep."""
    clock, was_on = ManualClock(autojump=True), VIRTUAL.is_on
    try:
        VIRTUAL.is_on = True
        with replacing_system_clocks(clock):
            _forget_all()
            yield clock
    finally:
        VIRTUAL.is_on = was_on
        _forget_all()


def _forget_all() -> None:
    for known, forget in list(_ALL.values()):
        if (one := known()) is not None:
            forget(one)
