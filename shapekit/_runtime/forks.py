"""Forks: what has to happen where the process forks, for all parts of it, in one place and one order.

Before a fork, what must not be in the midst of something comes to rest, and is held there until the fork is
over, in both processes. Then, in the child alone, each part begins anew, before any thread of the child can
use it. The order is that of subscribing: modules subscribe when they are imported, so what a module builds
on comes before it.

Ids: numbers that no other process, and no forked child, is likely to give out too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Generic, TypeVar
from weakref import ref

__all__ = ["WeakRegistry", "begin_anew", "in_child", "lock", "resting"]

T = TypeVar("T")
_Rest = Iterator[None]


class WeakRegistry(Generic[T]):
    """A registry of all of a kind that live. It takes no lock: they come and go at any line of any thread."""

    __slots__ = ("_refs",)

    def __init__(self) -> None:
        self._refs: dict[ref[T], None] = {}

    def add(self, one: T) -> None:
        # What is called when it goes is C alone, so that no signal comes in between.
        self._refs[ref(one, self._refs.pop)] = None

    def __iter__(self) -> Iterator[T]:
        return iter([one for known in list(self._refs) if (one := known()) is not None])


_LOCKS: WeakRegistry[threading.Lock] = WeakRegistry()
_RESTING: list[Callable[[], Iterable[_Rest]]] = []
_IN_CHILD: list[Callable[[], object]] = []
_FORKING = threading.Lock()
_HELD: list[_Rest] = []
"""Generators, each suspended in a `with` of its own: to clear this list is to end them all, and that is one
call in C, which no signal handler can come into."""


def lock() -> threading.Lock:
    """A lock that is free in a forked child: the thread of the parent that may have held it is not there."""
    made = threading.Lock()
    _LOCKS.add(made)
    return made


def resting(rests: Callable[[], Iterable[_Rest]]) -> None:
    """Before each fork, `rests()` is asked for generators; each yields once at rest, and ends afterwards."""
    _RESTING.append(rests)


def in_child(begin: Callable[[], object]) -> None:
    """In each forked child, `begin()` is called, while no other thread of ours can run."""
    _IN_CHILD.append(begin)


def begin_anew(begin: Callable[[T], object]) -> WeakRegistry[T]:
    """A registry of what begins anew in each forked child: there, `begin` is called with each that lives."""
    registry: WeakRegistry[T] = WeakRegistry()

    def begin_each() -> None:
        for one in registry:
            begin(one)

    in_child(begin_each)
    return registry


def _one_at_a_time() -> _Rest:
    with _FORKING:
        yield


def _before() -> None:
    held = [_one_at_a_time(), *(rest for rests in _RESTING for rest in rests())]
    _HELD.extend(held)
    _each([rest.__next__ for rest in held])
    # A fork of another thread, which has ended while this one waited, has cleared the list.
    _HELD[:] = held


def _begin_child() -> None:
    for known in _LOCKS:
        known.acquire(blocking=False)
        known.release()
    _each(_IN_CHILD)


def _each(calls: list[Callable[[], object]]) -> None:
    """Call all of them, whatever one of them raises."""
    raised: BaseException | None = None
    for call in calls:
        try:
            call()
        except BaseException as error:
            raised = error
    if raised is not None:
        raise raised


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_HELD.clear, after_in_child=_HELD.clear)
    os.register_at_fork(after_in_child=_begin_child)


def _new_ids() -> Callable[[], int]:
    return count(int.from_bytes(os.urandom(7)) >> 5).__next__


fresh_id = _new_ids()
"""The next one; it stays exact in a double. Call it through the module: a fork replaces it."""


def _renew_ids() -> None:
    global fresh_id  # noqa: PLW0603 - a forked child must not repeat its parent's
    fresh_id = _new_ids()


in_child(_renew_ids)
