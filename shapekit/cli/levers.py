"""`shapekit hold`, `resume` and `reset`: an operator's levers on a shared store.

They act through the program that wrote a key's state, so whoever shares the key obeys, and nothing else
about it changes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from shapekit._queue.key_status import notice_us
from shapekit._runtime import ids as nonce
from shapekit.algorithms.queue.queue import CONFIRM, HOLD, MARK, RESUME, LeakyQueue
from shapekit.cli.main import Complaint
from shapekit.cli.output import json_option, print_json
from shapekit.cli.top import clock, limit_text, open_store, open_survey, span, store_option
from shapekit.keys import whole_of
from shapekit.rate import SECOND_US, duration_us
from shapekit.stores.base import Operation, Store
from shapekit.stores.encoding import Sighting
from shapekit.stores.redis.protocol import bounded

_BEGINNING = 32
"""Letters that stand for certain where a long key is stored cut."""


class Found(NamedTuple):
    """A key, the program that keeps it, and the store."""

    store: Store
    shown: str
    name: str
    program: Any
    key: str

    def apply(self, operation: Operation, *args: Any) -> Any:
        """Let the program do something to the key."""
        return self.store.bind(self.name, self.program, operation)(self.key, *args)


@click.command()
@click.argument("key")
@click.argument("length")
@store_option
@json_option
def hold(key: str, length: str, store: str | None, as_json: bool) -> None:
    """Let nobody leave on KEY for LENGTH, such as 30s or 5m, in any process.

    KEY is `name:key`, as `shapekit top` shows it. Whoever waits is moved by as much, in order. A longer
    hold in place stays.
    """
    length_us = duration_us("length", length)
    with _found(key, store) as found:
        _must_queue(found)
        whole = whole_of(found.key)
        if whole is not None:
            found._replace(key=whole).apply(MARK, length_us, nonce.fresh())
        held_us: int = found.apply(HOLD, length_us, nonce.fresh())
    until = time.time() + held_us / SECOND_US
    how = "is held" if held_us <= length_us else "was held for longer already:"
    _say(
        as_json,
        {"key": key, "done": "hold", "held": held_us / SECOND_US, "until": until},
        f"{key} {how} for {span(held_us / SECOND_US)}, until {clock(until)}",
    )


@click.command()
@click.argument("key")
@store_option
@json_option
def resume(key: str, store: str | None, as_json: bool) -> None:
    """End the hold of KEY.

    KEY is `name:key`, as `shapekit top` shows it. Calls leave again, in their order and at their rate, when
    all processes have heard of it: after a twelfth of what is left, 1.5 seconds at least and 90 at most.
    """
    with _found(key, store) as found:
        _must_queue(found)
        _, _, until_us, now_us, *_ = found.apply(CONFIRM)
        left_us: int = found.apply(RESUME, notice_us(until_us - now_us))
    words = f"leaves again in {span(left_us / SECOND_US)}" if left_us else "was not held"
    _say(as_json, {"key": key, "done": "resume", "held": left_us / SECOND_US}, f"{key} {words}")


@click.command()
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
def reset(key: str, yes: bool, store: str | None, as_json: bool) -> None:
    """Forget KEY: its queue, its hold, and what was counted.

    KEY is `name:key`, as `shapekit top` shows it. The next call finds it as if nobody had ever called;
    whoever waits keeps the time it was promised. Asks first on a terminal.
    """
    with _found(key, store) as found:
        words = limit_text(found.program)
        if sys.stdin.isatty() and not yes:
            click.confirm(f"Forget {key} ({words}), its queue and its counts?", abort=True, err=True)
        found.store.reset(found.name, found.program, found.key)
    _say(as_json, {"key": key, "done": "reset", "limit": words}, f"{key} is as good as new ({words})")


@contextmanager
def _found(asked: str, where: str | None) -> Iterator[Found]:
    """The key that is meant, and its store; one line if it is not there."""
    if ":" not in asked:
        raise Complaint(f"key={asked!r} has no name; write name:key, as `shapekit top` shows it")
    is_cut = where is not None and "://" in where
    with open_survey(where) as survey:
        seen = [
            sighting for sighting in survey(asked[:_BEGINNING]) if _is_meant(sighting, asked, is_cut=is_cut)
        ]
    if not seen:
        raise Complaint(f"key={asked!r} is not there, or idle; `shapekit top` shows the keys that are in use")
    if len(seen) > 1:
        names = ", ".join(repr(sighting.name) for sighting in seen)
        raise Complaint(f"key={asked!r} is a key of several names ({names}); use the program that made it")
    sighting = seen[0]
    if sighting.program is None:
        raise Complaint(f"key={asked!r} was written by an unknown program; ask again once it was in use")
    if sighting.part:
        raise Complaint(
            f"key={asked!r} is one part of the composite {sighting.name!r}; use the program that made it"
        )
    store = open_store(where)
    try:
        name = sighting.name
        yield Found(store, asked, name, sighting.program, asked[len(name) + 1 :])
    finally:
        store.close()


def _is_meant(sighting: Sighting, asked: str, *, is_cut: bool) -> bool:
    """Whether it is the key; Redis keeps, and shows, a very long one cut."""
    if sighting.part or not is_cut:
        return sighting.shown == asked
    before, _, key = asked.partition(f"{sighting.name}:")
    return not before and bounded(key).decode("utf-8", "surrogatepass") == sighting.key


def _must_queue(found: Found) -> None:
    if not isinstance(found.program, LeakyQueue):
        raise Complaint(
            f"key={found.shown!r} is a gate ({limit_text(found.program)}), where nobody waits; "
            "only a shaper's or a policy's key can be held"
        )


def _say(as_json: bool, told: dict[str, Any], words: str) -> None:
    if as_json:
        print_json(told)
    else:
        click.echo(words)
