"""Waits: how to wait for a slot with each library, as its documentation tells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

Wait: TypeAlias = Callable[[], Awaitable[Any]]
_numbers = count()


@dataclass(frozen=True)
class Waiting:
    """One way to wait. `opened(rate, url)` makes anew what lets `rate` calls a second go, one by one.

    `url` is that of a Redis, for those that are `on_redis`. Those `in_threads` are not asynchronous: each
    caller is a thread, which nobody can cancel. One that `bursts` may let a second's calls go at once.
    """

    name: str
    opened: Callable[[int, str], AbstractAsyncContextManager[Wait]]
    on_redis: bool = False
    in_threads: bool = False
    bursts: bool = False


def fresh(word: str = "key") -> str:
    """A name that nobody has used before."""
    return f"{word}{next(_numbers)}"
