"""Waits: how to wait for a slot with each library, as its documentation says."""

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

    `url` is that of a Redis, for ways that are `on_redis`. Ways `in_threads` are not asynchronous: each
    caller is a thread, which cannot be cancelled. A way that `bursts` may let a second's calls go at once.
    """

    name: str
    opened: Callable[[int, str], AbstractAsyncContextManager[Wait]]
    on_redis: bool = False
    in_threads: bool = False
    bursts: bool = False


def fresh(word: str = "key") -> str:
    """A name that no other test has used."""
    return f"{word}{next(_numbers)}"
