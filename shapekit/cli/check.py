"""`shapekit check`: validates a file of policies table by table, and puts each into words."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import click

from shapekit import config
from shapekit.algorithms.base import Algorithm
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import Meter
from shapekit.algorithms.queue.adaptive import AdaptiveQueue
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.cli import BAD_INPUT
from shapekit.cli.main import CommandError
from shapekit.cli.output import (
    console,
    counted,
    json_option,
    open_store,
    ordinal,
    per_words,
    print_json,
    printable,
    rate_words,
    window_words,
)
from shapekit.errors import ConfigError, shortened, span_words
from shapekit.keys import KeyTemplate
from shapekit.policy import Policy
from shapekit.rate import Rate, max_wait_us


def meaning(policy: Policy, max_wait_us: int | None) -> list[str]:
    """What a policy does with calls, one sentence a line."""
    queue = policy.shaper.core.queue
    lines = [*_rates(queue), *(limit_words(gate) for gate in queue.gates)]
    if queue.headroom:
        lines.append(f"shapes {float(100 * queue.headroom):.4g} % below the stated rates")
    return [*lines, _waiting(queue, max_wait_us), *_key_text(policy)]


def _rates(queue: LeakyQueue) -> Iterator[str]:
    if isinstance(queue, AdaptiveQueue):
        yield f"as fast as the server bears, from {rate_words(queue.lowest)} to {rate_words(queue.highest)}"
        return
    paced = min(queue.rates, key=lambda rate: rate.period_us, default=None)
    if queue.pace == "burst":
        paced = None
    for rate in queue.rates:
        if rate is paced:
            yield _paced(rate, queue.burst)
        elif rate.burst is not None:
            yield f"{rate_words(rate)}, {rate.burst:,} of them at once after idling"
        else:
            yield f"at most {counted(rate.limit, 'call')} in any {window_words(rate.period_us)}"
    if queue.pace == "burst" and queue.rates:
        yield "as fast as that allows, not evenly spaced"


def _paced(rate: Rate, burst: int) -> str:
    every = span_words(round(rate.period_us / rate.limit))
    at_once = f"; after idling, {burst:,} may leave at once" if burst > 1 else ""
    return f"{rate_words(rate)}, evenly spaced: one every {every}{at_once}"


def limit_words(limit: Algorithm[Any]) -> str:
    """What a strategy allows, in words."""
    if isinstance(limit, Meter):
        return f"{limit.kind}: {rate_words(limit.rate)}, {limit.burst:,} of them at once after idling"
    if isinstance(limit, FixedWindow):
        window = per_words(limit.window_us)
        return f"{limit.kind}: at most {limit.limit:,} in each {window} by the clock, twice that over a seam"
    if isinstance(limit, SlidingWindowLog):
        return f"{limit.kind}: at most {limit.limit:,} in any {window_words(limit.window_us)}, exactly"
    if isinstance(limit, SlidingWindow):
        bound = "at most" if limit.conservative else "about"
        window = window_words(limit.window_us)
        return f"{limit.kind}: {bound} {limit.limit:,} in any {window}, counted in {limit.buckets} buckets"
    if isinstance(limit, Quota):
        evenly = ", spent evenly over what is left of it" if limit.spread else ""
        return f"quota: {counted(limit.limit, 'unit')} {_period(limit)}{evenly}"
    return limit.kind


def _period(quota: Quota) -> str:
    cadence, _, span = quota.per.partition(":")
    if cadence == "rolling":
        return f"in any {span}"
    if cadence == "fixed":
        return f"in each {span} since 1970"
    begins = {
        "month": "" if quota.anchor_day == 1 else f" that begins on the {ordinal(quota.anchor_day)}",
        "week": f" that begins on {quota.week_start}",
    }.get(cadence, "")
    sign = "-" if quota.offset_minutes < 0 else "+"
    hours, minutes = divmod(abs(quota.offset_minutes), 60)
    zone = quota.tz or ("UTC" if not quota.offset_minutes else f"UTC{sign}{hours:02}:{minutes:02}")
    return f"per {cadence}{begins}, reset at midnight {zone}"


def _waiting(queue: LeakyQueue, max_wait_us: int | None) -> str:
    if max_wait_us == 0:
        return "never waits: what cannot leave at once is refused"
    if max_wait_us is not None:
        return f"a call waits at most {span_words(max_wait_us)}; a longer wait is refused at once"
    if any(isinstance(gate, Quota) for gate in queue.gates):
        return "a call waits as long as it takes; a spent quota refuses at once"
    return "a call waits as long as it takes"


def _key_text(policy: Policy) -> Iterator[str]:
    if policy.permits is not None:
        yield f"at most {counted(policy.permits.limit.limit, 'call')} in flight at once"
    if isinstance(policy.key, KeyTemplate):
        yield f"counted apart for each {policy.key.text}"
    elif policy.key != "default":
        yield f"counted under the key {policy.key!r}"
    if policy.cost != 1:
        yield f"each call costs {policy.cost}"
    if not policy.enforce:
        yield "only measured: everything leaves at once, and the log says what would have happened"


class Finding(NamedTuple):
    """The result for one table: its policy in words, or a problem."""

    table: str
    means: list[str]
    problem: str | None


@click.command
@click.argument("file", metavar="FILE.toml", type=click.Path())
@click.option("--store", metavar="URL|FILE", help="Also say what operators have set in this store.")
@json_option
def check(file: str, store: str | None, as_json: bool) -> None:
    """Validate each table of FILE.toml as a policy, and explain it in words.

    Each error names the table and the field, on a line of its own on stderr; the exit code is then 2.
    """
    findings = list(_findings(file, tables_of(file), store))
    if as_json:
        tables = [finding._asdict() for finding in findings]
        print_json({"file": file, "ok": not any(finding.problem for finding in findings), "tables": tables})
    else:
        page = console()
        for finding in findings:
            if finding.problem is None:
                page.print(printable(f"[{finding.table}]"), style="bold", soft_wrap=True)
                for line in finding.means:
                    page.print(f"  {printable(line)}", soft_wrap=True)
    problems = [finding.problem for finding in findings if finding.problem is not None]
    for problem in problems:
        CommandError(problem).show()
    if problems:
        sys.exit(BAD_INPUT)


def _set(where: str, name: str) -> Iterator[str]:
    """Sentences about what operators have set for a policy in a store."""
    with closing(open_store(where)) as store:
        store.read_overrides(name)
        for one in store.settings(name).known.overrides:
            of_key = "" if one.key is None else f" for the key {one.key!r}"
            yield f"an operator has set{of_key}: {one.words}, by {one.by}"


def tables_of(file: str) -> Mapping[str, Any]:
    """The tables of a TOML file."""
    try:
        tables = config.tables_of(file)
    except ConfigError as error:
        raise CommandError(f"{file} {error.bound}; {error.fix}") from None
    if not tables:
        raise CommandError(f'{file} holds no policy; write a table such as [stripe] with rate = "25/s"')
    return tables


def _findings(file: str, tables: Mapping[str, Any], store: str | None) -> Iterator[Finding]:
    for name, table in tables.items():
        if not isinstance(table, dict):
            problem = (
                f"{file} {name}={shortened(table)} is outside of any table; put it under one such as [stripe]"
            )
            yield Finding(name, [], problem)
            continue
        try:
            policy = Policy.from_dict(table, name=name)
        except ConfigError as error:
            yield Finding(name, [], str(error.within(f"{file} [{name:.80}]")))
        else:
            means = meaning(policy, max_wait_us(table.get("max_wait")))
            policy.close()
            if store is not None:
                means += _set(store, policy.name)
            yield Finding(name, means, None)
