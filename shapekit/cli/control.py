"""`shapekit hold`, `resume` and `reset`: what an operator does to keys of a shared store.

They act through the program that wrote a key's state, so every process that shares the key obeys, and
nothing else about it changes. An idle key has no state, but its name has programs: of its keys in use, or
those that the store remembers.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeAlias

import click

from shapekit._queue.moving import notice_us
from shapekit._runtime import process
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.wire import CONFIRM, HOLD, MARK, RESUME
from shapekit.cli.main import CommandError
from shapekit.cli.output import counted, json_option, print_json, printable
from shapekit.cli.top import clock, limit_text, open_store, span, store_option
from shapekit.errors import ConfigError
from shapekit.keys import whole_of
from shapekit.rate import SECOND_US, duration_us
from shapekit.stores.base import Operation
from shapekit.stores.encoding import LiveKey
from shapekit.stores.redis.protocol import bounded

_BEGINNING = 32
"""Letters that stand for certain where a long key is stored shortened."""
_EVERY = ":*"
"""Behind a name: all of its keys."""
_NUMBER = re.compile(r"-?[0-9]*\.?[0-9]+")

Reply: TypeAlias = tuple[str, dict[str, Any]]
"""What was done to a key, in words and for machines."""


class FoundKey(NamedTuple):
    """A key, the program that keeps it, and the store."""

    store: Any
    name: str
    program: Any
    key: str
    in_use: bool = True

    @property
    def shown(self) -> str:
        """`name:key`."""
        return f"{self.name}:{self.key}"

    def apply(self, operation: Operation, *args: Any) -> Any:
        """Let the program do something to the key."""
        return self.store.bind(self.name, self.program, operation)(self.key, *args)


@click.command()
@click.argument("key")
@click.argument("length", metavar="TIME")
@store_option
@json_option
def hold(key: str, length: str, store: str | None, as_json: bool) -> None:
    """Stop all calls on KEY for TIME, in every process.

    KEY is `name:key`, as `shapekit top` shows it, or an idle key of the same name. `name:*` is every key of
    the name that is in use now; a key that comes into use later is not held. TIME is in seconds, such as 30
    or 0.5, or has units: 250ms, 5m, 1h30m.

    Calls that wait leave later by as much, in the same order. A longer hold in place stays.
    """
    held_us = length_us(length)
    with opened(store) as keys:
        if key.endswith(_EVERY):
            found, left = keys.every(key)
            told = [_held(one, held_us) for one in found]
            _say_all(as_json, told, f"{counted(len(told), 'key')} held", left)
        else:
            _say(as_json, *_held(_queue(keys.one(key) or keys.idle(key)), held_us))


def _held(found: FoundKey, length_us: int) -> Reply:
    whole = whole_of(found.key)
    if whole is not None:
        found._replace(key=whole).apply(MARK, length_us, process.fresh_id())
    held_us: int = found.apply(HOLD, length_us, process.fresh_id())
    until = time.time() + held_us / SECOND_US
    how = "is held" if found.in_use else "was not in use, and is held"
    if held_us > length_us:
        how = "was held for longer already:"
    return (
        f"{found.shown} {how} for {span(held_us / SECOND_US)}, until {clock(until)}",
        {
            "key": found.shown,
            "done": "hold",
            "held": held_us / SECOND_US,
            "until": until,
            "in_use": found.in_use,
        },
    )


@click.command()
@click.argument("key")
@store_option
@json_option
def resume(key: str, store: str | None, as_json: bool) -> None:
    """End the hold of KEY.

    KEY is `name:key`, as `shapekit top` shows it; `name:*` is every key of the name that is in use. Calls
    leave again, in their order and at their rate, as soon as every process has noticed: after a twelfth of
    what is left of the hold, 1.5 seconds at least and 90 at most.
    """
    with opened(store) as keys:
        if key.endswith(_EVERY):
            found, left = keys.every(key)
            told = [_resumed(one) for one in found]
            held = sum(one["held"] > 0 for _, one in told)
            _say_all(as_json, told, f"{held:,} of {counted(len(told), 'key')} had been held", left)
        else:
            _say(as_json, *_resumed(_queue(keys.in_use(key))))


def _resumed(found: FoundKey) -> Reply:
    _, _, until_us, now_us, *_ = found.apply(CONFIRM)
    left_us: int = found.apply(RESUME, notice_us(until_us - now_us))
    words = f": calls leave again in {span(left_us / SECOND_US)}" if left_us else " was not held"
    return f"{found.shown}{words}", {"key": found.shown, "done": "resume", "held": left_us / SECOND_US}


@click.command()
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
def reset(key: str, yes: bool, store: str | None, as_json: bool) -> None:
    """Forget KEY: its queue, its hold, and what was counted.

    KEY is `name:key`, as `shapekit top` shows it. The next call finds the key as if it had never been used;
    calls that wait keep the slots that they were given. Asks first on a terminal.
    """
    with opened(store) as keys:
        found = keys.in_use(key)
        words = limit_text(found.program)
        if sys.stdin.isatty() and not yes:
            click.confirm(f"Forget {key} ({words}), its queue and its counts?", abort=True, err=True)
        found.store.reset(found.name, found.program, found.key)
    _say(as_json, f"{key} is as good as new ({words})", {"key": key, "done": "reset", "limit": words})


class Keys:
    """The keys of a store, as an operator names them. What is wrong with a name is a CommandError."""

    def __init__(self, store: Any, *, shortens: bool) -> None:
        """`shortens`: whether the store shortens very long keys, as Redis does."""
        self._store = store
        self._shortens = shortens

    def in_use(self, asked: str) -> FoundKey:
        """A key that is in use."""
        found = self.one(asked)
        if found is None:
            raise CommandError(f"key={asked!r} is not in use; `shapekit top` shows the keys that are")
        return found

    def one(self, asked: str) -> FoundKey | None:
        """A key, if it is in use."""
        if ":" not in asked:
            raise CommandError(f"key={asked!r} has no name; write name:key, as `shapekit top` shows it")
        seen = list(self._store.survey(asked[:_BEGINNING]))
        meant = [live_key for live_key in seen if self._is_meant(live_key, asked)]
        if len(meant) > 1:
            names = ", ".join(repr(live_key.name) for live_key in meant)
            fix = "use the program that made it"
            raise CommandError(f"key={asked!r} is a key of several names ({names}); {fix}")
        if not meant and any(live_key.shown == asked for live_key in seen):
            raise CommandError(f"key={asked!r} is shortened; write the whole key, as the program has it")
        if not meant:
            return None
        (live_key,) = meant
        if live_key.program is None:
            fix = "ask again after its next call"
            raise CommandError(f"key={asked!r} was written by an unknown program; {fix}")
        if live_key.part:
            problem = f"is one part of the composite {live_key.name!r}"
            raise CommandError(f"key={asked!r} {problem}; use the program that made it")
        return self._found(live_key.name, live_key.program, asked)

    def every(self, asked: str) -> tuple[list[FoundKey], list[str]]:
        """The queues of a name that are in use, and those of its keys that cannot be reached."""
        name = asked.removesuffix(_EVERY)
        found, left = [], []
        for live_key in self._store.survey(f"{name}:"):
            if live_key.name != name:
                continue
            if live_key.program is None or not self._is_meant(live_key, live_key.shown):
                left.append(live_key.shown)
            else:
                found.append(_queue(self._found(name, live_key.program, live_key.shown)))
        if not found and not left:
            fix = f"to hold an idle key write it whole, such as {name}:default"
            raise CommandError(f"no key of {name!r} is in use; {fix}")
        return sorted(found, key=lambda one: one.key), sorted(left)

    def idle(self, asked: str) -> FoundKey:
        """A key that is not in use, with a program of its name, for a hold is kept in the terms of one."""
        if "*" in asked:
            raise CommandError(f"key={asked!r} is not in use; all keys of a name are written name:*")
        known: dict[str, list[Any]] = {}
        for programs_of in (self._in_use_of, self._store.programs):
            known = known or {name: programs for name in _names(asked) if (programs := programs_of(name))}
        if len(known) != 1:
            among = f"could be of {' or '.join(map(repr, known))}" if known else "is of no name in the store"
            fix = "check the spelling, or hold it from Python: shaper.hold(…)"
            raise CommandError(f"key={asked!r} {among}, so its limit is not known; {fix}")
        [(name, programs)] = known.items()
        if len({program.kind for program in programs}) > 1:
            fix = "hold it from Python: shaper.hold(…)"
            raise CommandError(f"key={asked!r} is of a name that had limits of several kinds; {fix}")
        found = [_queue(self._found(name, program, asked, in_use=False)) for program in programs]
        # A hold by any of several is as long. After it a burst has to be earned again: the shortest of them.
        return min(found, key=lambda one: one.program.hold(None, 0, 1, 0)[2])

    def _in_use_of(self, name: str) -> list[Any]:
        """The programs of the keys of a name that are in use."""
        seen = [live_key for live_key in self._store.survey(f"{name}:") if live_key.name == name]
        return [live_key.program for live_key in seen if live_key.program is not None]

    def _found(self, name: str, program: Any, asked: str, *, in_use: bool = True) -> FoundKey:
        return FoundKey(self._store, name, program, asked[len(name) + 1 :], in_use)

    def _is_meant(self, seen: LiveKey, asked: str) -> bool:
        if seen.part or not self._shortens:
            return seen.shown == asked
        before, _, key = asked.partition(f"{seen.name}:")
        return not before and bounded(key).decode("utf-8", "surrogatepass") == seen.key


@contextmanager
def opened(where: str | None) -> Iterator[Keys]:
    """The keys of the store at a URL or in a file."""
    with closing(open_store(where)) as store:
        yield Keys(store, shortens=where is not None and "://" in where)


def _names(asked: str) -> list[str]:
    """What may be the name in `name:key`, for both may have colons."""
    parts = asked.split(":")
    return [":".join(parts[:end]) for end in range(1, len(parts))]


def _queue(found: FoundKey) -> FoundKey:
    """The key, if it can be held."""
    if not isinstance(found.program, LeakyQueue):
        raise CommandError(
            f"key={found.shown!r} is a gate ({limit_text(found.program)}), where calls never wait; "
            "only a key of a shaper or a policy can be held"
        )
    return found


def length_us(text: str) -> int:
    """A duration in the spelling of a shell: a plain number is seconds."""
    try:
        return duration_us("time", float(text) if _NUMBER.fullmatch(text) else text)
    except ConfigError:
        problem = "is not a duration above 0 and below 71 years"
        fix = "write seconds, such as 30 or 0.5, or units: 250ms, 5m, 1h30m"
        raise CommandError(f"time={text!r} {problem}; {fix}") from None


def _say(as_json: bool, words: str, told: dict[str, Any]) -> None:
    if as_json:
        print_json(told)
    else:
        click.echo(printable(words))


def _say_all(as_json: bool, told: list[Reply], total: str, left: list[str]) -> None:
    """What was done to each key, their number, and which keys are left."""
    if as_json:
        print_json([one for _, one in told])
    else:
        click.echo("\n".join([*(printable(words) for words, _ in told), total]))
    if left:
        problem = f"{counted(len(left), 'key')} not reached, shortened or by an unknown program"
        raise CommandError(f"{problem} ({', '.join(left)}); write each whole key, as the program has it")
