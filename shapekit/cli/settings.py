"""`shapekit set`, `unset`, `settings` and `apply`: limits for every process, instead of those in the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import click

from shapekit._runtime.drivers import run
from shapekit.algorithms.overrides import (
    LIMITS,
    Change,
    Override,
    Overrides,
    difference,
    effective,
    override_of,
)
from shapekit.cli.check import tables_of
from shapekit.cli.control import length_us
from shapekit.cli.main import CommandError
from shapekit.cli.output import console, instant_words, json_option, print_json, printable, table
from shapekit.cli.top import open_store, store_option
from shapekit.errors import ConfigError
from shapekit.rate import SECOND_US
from shapekit.stores.settings import PERMITS, changed, legible, placed, set_by, without

_FIELDS = (*LIMITS, "state", "why", "until")
_KEYS = "keys"
"""The sub-table of a policy that has tables for keys."""


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
@click.option("--why", default="", metavar="TEXT", help="The reason, shown by `settings`.")
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
    why: str,
    by: str | None,
    store: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Set limits of POLICY for every process, instead of those in their code.

    RATE is one rate or several: "10/s", "10/s; 1000/h". They apply from each process's next decision on,
    and waiting calls move. Limits that are not given stay as in the code.

    \b
    shapekit set stripe 20/s --for 2h --why "sale"
    shapekit set stripe 50/s --key "gold-*"
    shapekit set stripe --hold
    """
    if off and hold:
        raise CommandError("--off and --hold are both given; give one of them")
    with closing(open_store(store)) as opened:
        now = opened.clock.now_us()
        until = None if length is None else (now + length_us(length)) / SECOND_US
        state = "off" if off else "held" if hold else "on"
        change: Change = {"key": key, "state": state, "reason": why, "until": until, **limits}  # type: ignore[typeddict-item]
        override = override_of(rate, change, by or set_by(), now)
        _check(opened, policy, override)
        run(changed, opened, policy, placed(override))
    _say(as_json, policy, override)


def _say(as_json: bool, policy: str, override: Override) -> None:
    if as_json:
        print_json(_plain(policy, override))
        return
    whose = f"{policy}, key {override.key}" if override.key else policy
    click.echo(printable(f"{whose}: {override.words}{_until(override)}"))


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
        whose = f"key {key!r} of {policy!r}" if key else repr(policy)
        raise CommandError(f"nothing was set for {whose}; `shapekit settings` shows what is")
    if as_json:
        print_json([_plain(policy, one) for one in gone])
    for one in gone if not as_json else ():
        whose = f"{policy}, key {one.key}" if one.key else policy
        click.echo(printable(f"{whose}: {one.words} is removed"))


@click.command()
@click.argument("policy", required=False)
@store_option
@json_option
def settings(policy: str | None, store: str | None, as_json: bool) -> None:
    """Show what is set: for which policies and keys, by whom, since when, until when, and why."""
    with closing(open_store(store)) as opened:
        found = {
            name: legible(opened, stored)
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
                ("policy", "key", "limits", "by", "since", "until", "why"),
                [
                    (name, one.key or "", one.words, one.by, _at(one.set_at), _at(one.until), one.why)
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

    A table [stripe] has the fields rate, burst, quota, concurrency, headroom, state, why and until; fields
    that it leaves out stay as in the code. A table [stripe.keys."gold-*"] has them for keys. For each policy
    in the file, one step sets what the file has and removes what it no longer has, and what has ended by its
    `until`. Other policies stay.
    """
    with closing(open_store(store)) as opened:
        told = {
            name: tuple(_overrides(file, name, fields, by or set_by(), opened.clock.now_us()))
            for name, fields in tables_of(file).items()
        }
        for name, overrides in told.items():
            for override in overrides:
                _check(opened, name, override)
        stored = opened.all_overrides()
        changes = {}
        for name, overrides in told.items():
            before = legible(opened, stored[name]) if name in stored else ()
            if not dry_run and _differ(before, overrides):
                before, _ = run(changed, opened, name, _wished(overrides))
            changes[name] = {
                key: pair for key, pair in difference(before, overrides).items() if _differ(*map(_one, pair))
            }
    _say_changes(as_json, changes, dry_run=dry_run)


def _say_changes(as_json: bool, changes: Mapping[str, Mapping[str | None, Any]], *, dry_run: bool) -> None:
    rows = [(name, key, *pair) for name, pairs in changes.items() for key, pair in pairs.items()]
    if as_json:
        words = [
            {"policy": name, "key": key, "before": old and old.words, "limits": new and new.words}
            for name, key, old, new in rows
        ]
        print_json({"applied": not dry_run, "changes": words})
        return
    for name, key, old, new in rows:
        whose = f"{name}, key {key}" if key else name
        before, after = (one.words if one else "as in the code" for one in (old, new))
        click.echo(printable(f"{whose}: {before} → {after}"))
    if not rows:
        click.echo("nothing changes")
    elif dry_run:
        click.echo("nothing was set: --dry-run")


def _wished(overrides: Overrides) -> Callable[[Overrides], Overrides]:
    return lambda _: overrides


def _one(override: Override | None) -> Overrides:
    return () if override is None else (override,)


def _differ(before: Overrides, after: Overrides) -> bool:
    """Whether the limits differ, regardless of who has set them and when."""
    told = ([one._replace(by="", set_at=0.0) for one in overrides] for overrides in (before, after))
    return sorted(next(told), key=_key_of) != sorted(next(told), key=_key_of)


def _key_of(override: Override) -> str:
    return override.key or ""


def _overrides(file: str, name: str, fields: Any, by: str, now_us: int) -> Iterator[Override]:
    """The overrides that a table says."""
    if not isinstance(fields, dict):
        raise CommandError(f"{file}: {name} is outside of any table; put it under one such as [stripe]")
    own = {field: value for field, value in fields.items() if field != _KEYS}
    keys = fields.get(_KEYS, {})
    if not isinstance(keys, dict) or not all(isinstance(value, dict) for value in keys.values()):
        raise CommandError(f'{file} [{name}]: keys is not a table of tables; write [{name}.keys."gold-*"]')
    for key, said in [*([(None, own)] if own else []), *keys.items()]:
        where = f"{file} [{name}{f'.keys.{key!r}' if key else ''}]"
        for field in said:
            if field not in _FIELDS:
                raise CommandError(f"{where} {field} is unknown; use some of {', '.join(_FIELDS)}")
        change = {field: value for field, value in said.items() if field not in ("rate", "why")}
        try:
            told: Any = {**change, "key": key, "reason": said.get("why", "")}
            override = override_of(said.get("rate"), told, by, now_us)
        except ConfigError as error:
            raise error.within(where) from None
        if override.is_over(now_us):
            click.echo(printable(f"shapekit: {where} ended at {_at(override.until)} UTC"), err=True)
        else:
            yield override


def _check(store: Any, policy: str, override: Override) -> None:
    """Complain of what the programs that are known under the name could not have."""
    known = store.programs(policy)
    for program in known:
        effective(program, override)
    if not known:
        click.echo(f"shapekit: the store knows no limit named {policy!r} yet; check the spelling", err=True)
    elif override.concurrency is not None and not store.programs(policy + PERMITS):
        click.echo(f"shapekit: the store knows no concurrency= of {policy!r} yet", err=True)


def _at(instant: float | None) -> str:
    return "" if instant is None else instant_words(round(instant * SECOND_US))


def _until(override: Override) -> str:
    return "" if override.until is None else f", until {_at(override.until)} UTC"


def _plain(policy: str, override: Override) -> dict[str, Any]:
    return {"policy": policy, **override._asdict()}
