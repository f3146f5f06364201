"""Ids: numbers that no other process, and no forked child, is likely to give out too.

They stay exact in a double. Call `ids.fresh()` through the module: a fork replaces it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count

from shapekit._runtime import forks


def _anew() -> Callable[[], int]:
    return count(int.from_bytes(os.urandom(7)) >> 5).__next__


fresh = _anew()


def _forked() -> None:
    global fresh  # noqa: PLW0603 - a forked child must not repeat its parent's
    fresh = _anew()


forks.in_child(_forked)
