"""`shapekit hold`, `resume`, `reset`, `set`, `unset`, `settings`, `apply`: an operator's changes to a store.

Keys are held, resumed and reset through the program that wrote their state, so that every process that shares
a key obeys, and nothing else about the key changes. An idle key has no state; it takes the program of another
key of its name that is in use, or one that the store remembers. A key whose state is damaged, or was written
by an unknown program, can only be reset, which removes it.

Settings are limits for every process, instead of those in their code.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeAlias

import click

from shapekit._queue.moving import notice_us
from shapekit._runtime import process
from shapekit._runtime.drivers import run
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.overrides import (
    HELD,
    LIMITS,
    Change,
    Override,
    Overrides,
    difference,
    effective,
    override_of,
    placed,
    without,
)
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.queue.wire import CONFIRM, HOLD, MARK, RESUME
from shapekit.cli.check import tables_of
from shapekit.cli.main import CommandError, spelled
from shapekit.cli.output import (
    clock,
    console,
    counted,
    instant_words,
    json_option,
    limit_text,
    open_store,
    print_json,
    printable,
    span,
    store_option,
    table,
)
from shapekit.config import DOTTED
from shapekit.errors import ConfigError
from shapekit.keys import whole_of
from shapekit.rate import SECOND_US, duration_us
from shapekit.stores.base import PERMITS, Operation, changed, legible, set_by
from shapekit.stores.encoding import LiveKey

_BEGINNING = 32
"""How many of its first letters a long key keeps at least if it is stored shortened."""
_EVERY = ":*"
"""After a name: all of its keys."""
_FIELDS = (*LIMITS, "state", "reason", "until")
_KEYS = "keys"
"""The sub-table of a policy that holds the tables for its keys."""

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
        """Apply an operation of the program to the key."""
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
    with keys_of(store) as keys:
        if key.endswith(_EVERY):
            found, left = keys.every(key)
            replies = [_held(one, held_us) for one in found]
            _say_all(as_json, replies, f"{counted(len(replies), 'key')} held", left)
        else:
            seen = keys.seen(key)
            one = _queue(keys.readable(seen, key)) if seen else keys.idle(key)
            _say(as_json, *_held(one, held_us))


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
    what is left of the hold, 1.5 seconds at least and 90 at most. If a quota or a fixed window is spent, they
    leave in the next one.
    """
    with keys_of(store) as keys:
        if key.endswith(_EVERY):
            found, left = keys.every(key)
            replies = [_resumed(one) for one in found]
            held = sum(one["held"] > 0 for _, one in replies)
            _say_all(as_json, replies, f"{held:,} of {counted(len(replies), 'key')} had been held", left)
        else:
            _say(as_json, *_resumed(_queue(keys.readable(keys.in_use(key), key))))


def _resumed(found: FoundKey) -> Reply:
    _, _, until_us, now_us, *_ = found.apply(CONFIRM)
    left_us: int = max(0, until_us - now_us)
    override = found.store.settings(found.name).known.choose(found.key)
    if override is not None and override.state == HELD:
        outcome = f" stays held, as {override.by} has set: `shapekit unset` ends that"
    else:
        left_us = found.apply(RESUME, notice_us(until_us - now_us))
        outcome = f": calls leave again in {span(left_us / SECOND_US)}" if left_us else " was not held"
    return f"{found.shown}{outcome}", {"key": found.shown, "done": "resume", "held": left_us / SECOND_US}


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
    with keys_of(store) as keys:
        seen = keys.in_use(key)
        limit = None if seen.program is None else limit_text(seen.program)
        description = limit or ("was damaged" if seen.is_damaged else "was of an unknown program")
        if sys.stdin.isatty() and not yes:
            question = printable(f"Forget {key} ({description}), its queue and its counts?")
            click.confirm(question, abort=True, err=True)
        keys.reset(seen, key)
    _say(as_json, f"{key} is as good as new ({description})", {"key": key, "done": "reset", "limit": limit})


@click.command("set")
@click.argument("policy")
@click.argument("rate", required=False)
@click.option("--key", metavar="KEY", help='Only for this key; "gold-*" for all that begin with that.')
@click.option("--burst", metavar="N", type=int, help="How many calls may leave at once after an idle time.")
@click.option("--quota", metavar="QUOTA", help='Another limit for a quota: "2_000_000/month".')
@click.option("--concurrency", metavar="N", type=int, help="How many calls may be in flight at once.")
@click.option("--headroom", metavar="PART", type=float, help="The part by which to stay below the rates.")
@click.option("--off", is_flag=True, help="No limit at all.")
@click.option("--hold", is_flag=True, help="No call leaves until this is changed.")
@click.option("--for", "length", metavar="TIME", help="For how long: 30, 5m, 2h. Default: until it is unset.")
@click.option("--reason", default="", metavar="TEXT", help="The reason, shown by `settings`.")
@click.option("--by", metavar="NAME", help="Who sets it. Default: USER@HOST.")
@store_option
@json_option
def set_(
    policy: str,
    rate: str | None,
    key: str | None,
    off: bool,
    hold: bool,
    length: str | None,
    reason: str,
    by: str | None,
    store: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Set limits of POLICY for every process, instead of those in their code.

    RATE is one rate or several: "10/s", "10/s; 1000/h". They apply from each process's next decision on,
    and waiting calls move. Limits that are not given return to those in the code, even if they were set.

    \b
    shapekit set stripe 20/s --for 2h --reason "sale"
    shapekit set stripe 50/s --key "gold-*"
    shapekit set stripe --hold
    """
    if not policy:
        raise CommandError("POLICY is empty; give the name of a policy")
    if off and hold:
        raise CommandError("--off and --hold are both given; give one of them")
    if rate is None and not (off or hold) and all(limit is None for limit in limits.values()):
        raise CommandError("no limit is given; give a RATE such as 20/s, another limit, --off or --hold")
    with closing(open_store(store)) as opened:
        now = opened.wall_us()
        until = None if length is None else (now + length_us(length)) / SECOND_US
        state = "off" if off else "held" if hold else "on"
        change: Change = {"key": key, "state": state, "reason": reason, "until": until, **limits}  # type: ignore[typeddict-item]
        override = override_of(rate, change, by or set_by(), now)
        known = _programs(opened, policy)
        _check(known, override)
        _warn(opened, policy, known, [override])
        before, _ = run(changed, opened, policy, placed(override))
    text = f"{_shown(policy, override.key)}: {override.words}{_ends(override)}"
    for old in before:
        if old.key == override.key and old.words != override.words:
            text += f", instead of {old.words}{_ends(old)}"
    _say(as_json, text, _plain(policy, override))


@click.command()
@click.argument("policy")
@click.option("--key", metavar="KEY", help="Only what was set for this key or beginning of keys.")
@click.option("--all", "is_all", is_flag=True, help="What was set for the policy and for all keys.")
@store_option
@json_option
def unset(policy: str, key: str | None, is_all: bool, store: str | None, as_json: bool) -> None:
    """Remove what was set for POLICY: the limits in the code apply again."""
    if key is not None and is_all:
        raise CommandError("--key and --all are both given; give one of them")
    with closing(open_store(store)) as opened:
        before, after = run(
            changed, opened, policy, lambda overrides: () if is_all else without(overrides, key)
        )
    gone = [old for old, _ in difference(before, after).values()]
    if not gone:
        subject = f"key {key!r} of {policy!r}" if key else repr(policy)
        raise CommandError(f"nothing was set for {subject}; `shapekit settings` shows what is")
    if as_json:
        print_json([_plain(policy, one) for one in gone])
    for one in gone if not as_json else ():
        click.echo(printable(f"{_shown(policy, one.key)}: {one.words} is removed"))


@click.command()
@click.argument("policy", required=False)
@store_option
@json_option
def settings(policy: str | None, store: str | None, as_json: bool) -> None:
    """Show what is set: for which policies and keys, by whom, since when, until when, and why."""
    with closing(open_store(store)) as opened:
        now = opened.wall_us()
        found = {
            name: legible(stored, now)
            for name, stored in sorted(opened.all_overrides().items())
            if policy in (None, name)
        }
    rows = [(name, one) for name, overrides in found.items() for one in overrides]
    if as_json:
        print_json([_plain(name, one) for name, one in rows])
    elif not rows:
        click.echo("nothing is set: the limits in the code apply")
    else:
        console().print(
            table(
                ("policy", "key", "limits", "by", "since", "until", "reason"),
                [
                    (name, one.key or "", one.words, one.by, _at(one.set_at), _at(one.until), one.reason)
                    for name, one in rows
                ],
            )
        )


@click.command()
@click.argument("file", metavar="FILE.toml", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Show the difference, and set nothing.")
@click.option("--by", metavar="NAME", help="Who sets it. Default: USER@HOST.")
@store_option
@json_option
def apply(file: str, dry_run: bool, by: str | None, store: str | None, as_json: bool) -> None:
    """Set what FILE.toml says, and show what that changes.

    A table [stripe] has the fields rate, burst, quota, concurrency, headroom, state, reason and until; fields
    that it leaves out stay as in the code. A table [stripe.keys."gold-*"] has them for keys. For each policy
    in the file, one step sets what the file has and removes what it no longer has, and what has ended by its
    `until`. Other policies stay.
    """
    with closing(open_store(store)) as opened:
        now = opened.wall_us()
        desired = {
            name: tuple(_overrides(file, name, fields, by or set_by(), now))
            for name, fields in tables_of(file).items()
        }
        for name, overrides in desired.items():
            known = _programs(opened, name)
            for override in overrides:
                try:
                    _check(known, override)
                except ConfigError as error:
                    raise error.within(_place(file, name, override.key)) from None
            if overrides:
                _warn(opened, name, known, overrides)
        stored = opened.all_overrides()
        changes = {}
        for name, overrides in desired.items():
            before = legible(stored[name], now) if name in stored else ()
            if not dry_run and _differ(before, overrides):
                before, _ = run(changed, opened, name, _wished(overrides))
            changes[name] = {
                key: pair
                for key, pair in difference(before, overrides).items()
                if _differ([pair[0]], [pair[1]])
            }
    _say_changes(as_json, changes, dry_run=dry_run)


def _say_changes(as_json: bool, changes: Mapping[str, Mapping[str | None, Any]], *, dry_run: bool) -> None:
    rows = [(name, key, *pair) for name, pairs in changes.items() for key, pair in pairs.items()]
    if as_json:
        shown = [
            {"policy": name, "key": key, "before": before, "limits": after}
            for name, key, old, new in rows
            for before, after in [_words_of(old, new)]
        ]
        print_json({"applied": not dry_run, "changes": shown})
        return
    for name, key, old, new in rows:
        before, after = (text or "as in the code" for text in _words_of(old, new))
        click.echo(printable(f"{_shown(name, key)}: {before} → {after}"))
    if not rows:
        click.echo("nothing changes")
    elif dry_run:
        click.echo("nothing was set: --dry-run")


def _words_of(old: Override | None, new: Override | None) -> tuple[str | None, str | None]:
    """The limits before and after, with their end and reason if nothing else changes."""
    if old is None or new is None or old.words != new.words:
        return old and old.words, new and new.words
    before, after = (
        f"{one.words}{_ends(one)}{f', reason {one.reason}' if one.reason else ''}" for one in (old, new)
    )
    return before, after


class Keys:
    """The keys of a store, by the names that an operator gives; a wrong name raises CommandError."""

    def __init__(self, store: Any, *, shortens: bool) -> None:
        """`shortens`: whether the store shortens very long keys, as Redis does."""
        self._store = store
        self._shortens = shortens

    def in_use(self, full_key: str) -> LiveKey:
        """A key that is in use, as read from the store; its state may be damaged."""
        seen = self.seen(full_key)
        if seen is None:
            raise CommandError(f"key={full_key!r} is not in use; `shapekit top` shows the keys that are")
        return seen

    def reset(self, seen: LiveKey, full_key: str) -> None:
        """Forget a key that was read from the store."""
        if seen.program is None:
            self._store.remove(seen)
        else:
            found = self._found(seen.name, seen.program, full_key)
            self._store.reset(found.name, found.program, found.key)

    def seen(self, full_key: str) -> LiveKey | None:
        """A key as read from the store, if it is in use."""
        if ":" not in full_key:
            raise CommandError(f"key={full_key!r} has no name; write name:key, as `shapekit top` shows it")
        seen = list(self._store.survey(full_key[:_BEGINNING]))
        matches: list[LiveKey] = [live_key for live_key in seen if self._is_meant(live_key, full_key)]
        if len(matches) > 1:
            names = ", ".join(repr(live_key.name) for live_key in matches)
            fix = "use the program that made it"
            raise CommandError(f"key={full_key!r} is a key of several names ({names}); {fix}")
        if not matches and any(live_key.shown == full_key for live_key in seen):
            raise CommandError(f"key={full_key!r} is shortened; write the whole key, as the program has it")
        if not matches:
            return None
        (live_key,) = matches
        if live_key.part:
            problem = f"is one part of the composite {live_key.name!r}"
            raise CommandError(f"key={full_key!r} {problem}; use the program that made it")
        return live_key

    def readable(self, seen: LiveKey, full_key: str) -> FoundKey:
        """A key that was read from the store, if its program is known and its state is whole."""
        if seen.program is None:
            problem, fix = "was written by an unknown program", "ask again after its next call, or reset it"
            if seen.is_damaged:
                problem, fix = "is damaged", "`shapekit reset` repairs it"
            raise CommandError(f"key={full_key!r} {problem}; {fix}")
        return self._found(seen.name, seen.program, full_key)

    def every(self, pattern: str) -> tuple[list[FoundKey], list[str]]:
        """The keys of a name that are in use, and those among them that cannot be held."""
        name = pattern.removesuffix(_EVERY)
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

    def idle(self, full_key: str) -> FoundKey:
        """A key that is not in use, with a program of its name, which a hold needs."""
        if "*" in full_key:
            raise CommandError(f"key={full_key!r} is not in use; all keys of a name are written name:*")
        known: dict[str, list[Any]] = {}
        for programs_of in (self._in_use_of, self._store.programs):
            known = known or {name: programs for name in _names(full_key) if (programs := programs_of(name))}
        if len(known) != 1:
            among = f"could be of {' or '.join(map(repr, known))}" if known else "is of no name in the store"
            fix = "check the spelling, or hold it from Python: shaper.hold(…)"
            raise CommandError(f"key={full_key!r} {among}, so its limit is not known; {fix}")
        [(name, programs)] = known.items()
        if len({program.kind for program in programs}) > 1:
            fix = "hold it from Python: shaper.hold(…)"
            raise CommandError(f"key={full_key!r} is of a name that had limits of several kinds; {fix}")
        found = [_queue(self._found(name, program, full_key, in_use=False)) for program in programs]
        # A hold lasts as long under each program. After it a burst has to be earned again: take the shortest.
        return min(found, key=lambda one: one.program.hold(None, 0, 1, 0)[2])

    def _in_use_of(self, name: str) -> list[Any]:
        """The programs of the keys of a name that are in use."""
        seen = [live_key for live_key in self._store.survey(f"{name}:") if live_key.name == name]
        return [live_key.program for live_key in seen if live_key.program is not None]

    def _found(self, name: str, program: Any, full_key: str, *, in_use: bool = True) -> FoundKey:
        return FoundKey(self._store, name, program, full_key[len(name) + 1 :], in_use)

    def _is_meant(self, seen: LiveKey, full_key: str) -> bool:
        if seen.part or not self._shortens:
            return seen.shown == full_key
        from shapekit.stores.redis.protocol import bounded  # noqa: PLC0415 - redis is an extra

        before, _, key = full_key.partition(f"{seen.name}:")
        return not before and bounded(key).decode("utf-8", "surrogatepass") == seen.key


@contextmanager
def keys_of(where: str | None) -> Iterator[Keys]:
    """The keys of the store at a URL or in a file."""
    with closing(open_store(where)) as store:
        yield Keys(store, shortens=where is not None and "://" in where)


def _names(text: str) -> list[str]:
    """All possible names in `name:key`, since both may contain colons."""
    parts = text.split(":")
    return [":".join(parts[:end]) for end in range(1, len(parts))]


def _queue(found: FoundKey) -> FoundKey:
    """The key, if it can be held."""
    if isinstance(found.program, Concurrency):
        own = f"{found.name.removesuffix(PERMITS)}:{found.key}"
        raise CommandError(f"key={found.shown!r} has the permits of {own!r}; hold that key")
    if not isinstance(found.program, LeakyQueue):
        raise CommandError(
            f"key={found.shown!r} is a gate ({limit_text(found.program)}), where calls never wait; "
            "only a key of a shaper or a policy can be held"
        )
    return found


def length_us(text: str) -> int:
    """A duration above 0."""
    try:
        return duration_us("time", spelled(text))
    except ConfigError:
        problem = "is not a duration above 0 and below 71 years"
        fix = "write seconds, such as 30 or 0.5, or units: 250ms, 5m, 1h30m"
        raise CommandError(f"time={text!r} {problem}; {fix}") from None


def _wished(overrides: Overrides) -> Callable[[Overrides], Overrides]:
    return lambda _: overrides


def _differ(*sides: Iterable[Override | None]) -> bool:
    """Whether the limits differ, regardless of who has set them and when."""
    before, after = ({one and one._replace(by="", set_at=0.0) for one in side} for side in sides)
    return before != after


def _overrides(file: str, name: str, fields: Any, by: str, now_us: int) -> Iterator[Override]:
    """The overrides in a table."""
    if not isinstance(fields, dict):
        raise CommandError(f"{file}: {name} is outside of any table; put it under one such as [stripe]")
    if not name:
        raise CommandError(f"{file}: the name of a table is empty; give the name of a policy")
    own = {field: value for field, value in fields.items() if field != _KEYS}
    keys = fields.get(_KEYS, {})
    if not isinstance(keys, dict) or not all(isinstance(value, dict) for value in keys.values()):
        raise CommandError(f'{file} [{name}]: keys is not a table of tables; write [{name}.keys."gold-*"]')
    for key, entry in [*([(None, own)] if own else []), *keys.items()]:
        where = _place(file, name, key)
        for field, value in entry.items():
            if field not in _FIELDS:
                fix = DOTTED if isinstance(value, dict) else f"use some of {', '.join(_FIELDS)}"
                raise CommandError(f"{where} {field} is unknown; {fix}")
        change = {field: value for field, value in entry.items() if field != "rate"}
        try:
            full_change: Any = {**change, "key": key}
            override = override_of(entry.get("rate"), full_change, by, now_us)
        except ConfigError as error:
            raise error.within(where) from None
        if override.is_over(now_us):
            click.echo(printable(f"shapekit: {where} ended at {_at(override.until)} UTC"), err=True)
        else:
            yield override


def _place(file: str, policy: str, key: str | None) -> str:
    """The table of a file that an override comes from."""
    return f"{file} [{policy}{'' if key is None else f'.keys.{key!r}'}]"


def _programs(store: Any, policy: str) -> Sequence[Any]:
    """The programs of a policy that the store knows."""
    known: Sequence[Any] = store.programs(policy)
    if known and policy.endswith(PERMITS) and all(isinstance(program, Concurrency) for program in known):
        own = policy.removesuffix(PERMITS)
        fix = f"write {own} --concurrency N"
        raise CommandError(f"{policy!r} has the permits of {own!r}, which follow what is set for it; {fix}")
    return known


def _check(known: Iterable[Any], override: Override) -> None:
    """Raise ConfigError for what a known program of the policy cannot have."""
    for program in known:
        effective(program, override)


def _warn(store: Any, policy: str, known: Sequence[Any], overrides: Iterable[Override]) -> None:
    """Warn if the store knows no program of the policy, or none of its permits."""
    if not known:
        # `hold` and `top` write the key after the name, so users may easily write it here, too.
        names = [name for name in _names(policy) if store.programs(name)]
        fix = f"write {names[0]} --key {policy[len(names[0]) + 1 :]}" if names else "check the spelling"
        click.echo(printable(f"shapekit: the store knows no limit named {policy!r} yet; {fix}"), err=True)
    elif any(one.concurrency is not None for one in overrides) and not store.programs(policy + PERMITS):
        click.echo(f"shapekit: the store knows no concurrency= of {policy!r} yet", err=True)


def _shown(policy: str, key: str | None) -> str:
    return f"{policy}, key {key}" if key else policy


def _at(instant: float | None) -> str:
    return "" if instant is None else instant_words(round(instant * SECOND_US))


def _ends(override: Override) -> str:
    return "" if override.until is None else f", until {_at(override.until)} UTC"


def _plain(policy: str, override: Override) -> dict[str, Any]:
    return {"policy": policy, **override._asdict()}


def _say(as_json: bool, text: str, fields: dict[str, Any]) -> None:
    if as_json:
        print_json(fields)
    else:
        click.echo(printable(text))


def _say_all(as_json: bool, replies: list[Reply], total: str, left: list[str]) -> None:
    """What was done to each key, their number, and which keys are left."""
    if as_json:
        print_json([one for _, one in replies])
    else:
        click.echo("\n".join([*(printable(text) for text, _ in replies), total]))
    if left:
        problem = f"{counted(len(left), 'key')} not reached, shortened, damaged or by an unknown program"
        raise CommandError(f"{problem} ({', '.join(left)}); write each whole key, as the program has it")
