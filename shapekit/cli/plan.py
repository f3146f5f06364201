"""`shapekit plan`: when many calls will have left, computed by the shaper itself."""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import NamedTuple, cast

import click
from rich.console import Console
from rich.progress import track

from shapekit._runtime.drivers import run
from shapekit.algorithms.overrides import HELD, Override, effective, placed
from shapekit.algorithms.periods import zone_of
from shapekit.algorithms.quota import Quota
from shapekit.cli.main import CommandError
from shapekit.cli.output import (
    bar,
    console,
    counted,
    instant_words,
    json_option,
    open_store,
    ordinal,
    print_json,
    printable,
    store_option,
    table,
)
from shapekit.clock import ManualClock
from shapekit.errors import ConfigError, span_words
from shapekit.policy import Policy
from shapekit.rate import MAX_SPAN_US, SECOND_US, whole
from shapekit.stores.base import changed

_LONGEST_S = MAX_SPAN_US / SECOND_US
MAX_PLAYED = 1_000_000
"""The most calls that are simulated one after another."""


class Days(NamedTuple):
    """Consecutive days on which the same number of calls leave, to within one."""

    first: date
    last: date
    calls: int
    """The calls on all of these days."""
    least: int
    most: int
    """The least and the most calls on one of these days."""


class PlannedDepartures:
    """The departures of `calls` calls that are all made at `start_us`, without any others.

    Without windows, gates and quotas, the shaper forecasts each departure directly. With them, the calls are
    simulated: the shaper reserves one slot after another.
    """

    def __init__(self, policy: Policy, calls: int, cost: int, start_us: int, *, show: bool = False) -> None:
        self.calls = calls
        self._shaper = policy.shaper
        self._cost = cost
        self._start_us = start_us
        self._played: list[int] | None = None
        # This first look reads the overrides from the store.
        self._shaper.forecast(cost=cost)
        self.queue = self._shaper.core.queue_of("default")
        if self.queue.constraints.algorithms:
            self._played = self._play(show)
        else:
            self._bounded(calls, self._shaper.forecast(calls, cost=cost).last_in)

    def leaves_us(self, number: int) -> int:
        """When the `number`-th call leaves, counted from 1."""
        if self._played is not None:
            return self._played[number - 1]
        last_in = self._shaper.forecast(number, cost=self._cost).last_in
        return self._start_us + round(last_in * SECOND_US)

    def gone_by(self, instant_us: int) -> int:
        """How many calls have left by `instant_us`."""
        return bisect_right(range(1, self.calls + 1), instant_us, key=self.leaves_us)

    def days(self, zone: tzinfo) -> list[Days]:
        """The days on which calls leave; consecutive days that are alike make one entry."""
        gone, runs = 0, list[Days]()
        while gone < self.calls:
            day = datetime.fromtimestamp(self.leaves_us(gone + 1) // SECOND_US, zone).date()
            if runs:
                # If the zone's clock is set back across midnight, the new day has begun all the same.
                day = max(day, runs[-1].last + timedelta(days=1))
            midnight = datetime.combine(day + timedelta(days=1), datetime.min.time(), zone)
            before, gone = gone, self.gone_by(int(midnight.timestamp()) * SECOND_US - 1)
            calls = gone - before
            if runs:
                run = runs[-1]
                least, most = min(run.least, calls), max(run.most, calls)
                # An even pace puts one call more on some days than on others.
                if day == run.last + timedelta(days=1) and most - least <= 1:
                    runs[-1] = Days(run.first, day, run.calls + calls, least, most)
                    continue
            runs.append(Days(day, day, calls, calls, calls))
        return runs

    def _play(self, show: bool) -> list[int]:
        if self.calls > MAX_PLAYED:
            raise CommandError(
                f"calls={self.calls} is more than {MAX_PLAYED} and each is simulated under several limits; "
                "plan fewer calls, or one rate alone"
            )
        numbers: Iterable[int] = range(1, self.calls + 1)
        if show:
            numbers = track(numbers, "playing", transient=True, console=Console(stderr=True))
        clock = cast("ManualClock", self._shaper.core.store.clock)
        played: list[int] = []
        for number in numbers:
            slot = self._shaper.reserve(cost=self._cost, max_wait=_LONGEST_S)
            played.append(slot.grant.departs_at_us)
            self._bounded(number, (played[-1] - self._start_us) / SECOND_US)
            # The next call leaves no earlier, so that the windows can forget what they no longer count.
            clock.set(played[-1] / SECOND_US)
        return played

    def _bounded(self, number: int, delay_s: float) -> None:
        if delay_s > _LONGEST_S:
            bound = span_words(MAX_SPAN_US)
            raise CommandError(f"call {number} leaves more than {bound} after the start; plan fewer calls")


_STEPS = 12
_WIDEST_BAR = 50
_LATEST_US = int(datetime(2100, 12, 31, tzinfo=UTC).timestamp()) * SECOND_US


@click.command
@click.argument("rate", required=False)
@click.option("--calls", metavar="N", type=int, required=True, help="How many calls ask at once.")
@click.option("--nth", metavar="N", type=int, multiple=True, help="Also say when the N-th call leaves.")
@click.option("--quota", metavar="QUOTA", help='A budget beside the rate: "1_000_000/month".')
@click.option("--burst", metavar="N", type=int, help="How many calls may leave at once after an idle time.")
@click.option("--cost", metavar="N", type=int, default=1, help="What each call costs.")
@click.option("--start", metavar="TIME", help="When they ask: 2026-11-21T09:00, in --tz. Default: now.")
@click.option(
    "--tz", metavar="ZONE", help="The zone of --start, of the quota and of what is printed: Europe/Berlin."
)
@click.option("--policy", "name", metavar="POLICY", help="Apply what operators have set for it in --store.")
@click.option("--key", metavar="KEY", help="Apply what they have set for this key of it.")
@store_option
@json_option
def plan(
    rate: str | None,
    calls: int,
    nth: tuple[int, ...],
    quota: str | None,
    burst: int | None,
    cost: int,
    start: str | None,
    tz: str | None,
    name: str | None,
    key: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Say when the first, the n-th and the last of N calls leave under RATE.

    RATE is one rate or several: "10/s", "10/s; 1000/h". A shaper decides, on virtual time that begins at
    --start, without other calls. Several rates and quotas are simulated call by call, up to a million calls.

    With --policy, an override that operators have set for POLICY replaces the limits that are given here, as
    it does in every process. An override that ends while calls wait still applies to all of them.

    \b
    shapekit plan "10/s; 1000/h" --calls 5000
    shapekit plan 25/s --calls 100000 --quota 50_000/day --tz Europe/Berlin
    shapekit plan 5/s --calls 1000 --policy stripe --key acme --store redis://localhost
    """
    override = None if name is None else _override(store, name, key)
    if key is not None and name is None:
        raise CommandError(f"key={key!r} is given without a policy; add --policy")
    if override is not None and override.state == HELD:
        raise CommandError(f"{name!r} is held, so that no call leaves; see `shapekit settings`")
    if rate is None and override is not None:
        rate = override.rate
    if rate is None and quota is None:
        raise CommandError('nothing is given to plan by; give a rate such as "10/s", or --quota')
    zone = UTC if tz is None else zone_of(tz)
    start_us = _instant_us(start, zone)
    numbers = _marks(whole("calls", calls), nth)
    policy = Policy(
        rate,
        burst=burst,
        quota=None if quota is None else _budget(quota, tz),
        clock=ManualClock(start_us / SECOND_US),
    )
    if override is not None:
        override = override._replace(key=None, until=None)
        effective(policy.shaper.core.queue, override)  # an error for one that these limits could not have
        run(changed, policy.shaper.core.store, policy.name, placed(override))
    planned = PlannedDepartures(policy, calls, cost, start_us, show=sys.stderr.isatty() and not as_json)
    marks = [(number, planned.leaves_us(number)) for number in numbers]
    curve = _curve(planned, start_us)
    days = [] if quota is None else planned.days(zone)
    if as_json:
        print_json(
            {
                "rate": rate,
                "quota": quota,
                "burst": planned.queue.burst,
                "set": None if override is None else override.words,
                "cost": cost,
                "calls": calls,
                "start": _iso(start_us, zone),
                "departures": [
                    {"call": number, "after_s": (at - start_us) / SECOND_US, "at": _iso(at, zone)}
                    for number, at in marks
                ],
                "curve": [{"after_s": after / SECOND_US, "calls": gone} for after, gone in curve],
                "days": [
                    {
                        "from": run.first.isoformat(),
                        "to": run.last.isoformat(),
                        "calls": run.calls,
                        "each_day": {"least": run.least, "most": run.most},
                    }
                    for run in days
                ],
            }
        )
        return
    page = console()
    limits = " and ".join(text for text in (rate, quota and f"a quota of {quota}") if text)
    zone_name = tz or "UTC"
    page.print(f"{counted(calls, 'call')} under {limits}, from {instant_words(start_us, zone)} {zone_name}\n")
    if override is not None:
        page.print(f"set by {printable(override.by)}: {override.words}\n", soft_wrap=True)
    rows = [
        (ordinal(number), "at once" if at == start_us else span_words(at - start_us), instant_words(at, zone))
        for number, at in marks
    ]
    page.print(table(("call", "leaves after", f"at ({zone_name})"), rows, numbers=("call", "leaves after")))
    if len(curve) > 1:
        plain = page.options.ascii_only
        width = max(10, min(_WIDEST_BAR, page.width - 45))
        shares = [(after, gone, gone / calls) for after, gone in curve]
        bars = [
            (span_words(after), bar(share, width, plain=plain).ljust(width), f"{gone:,}", f"{share:.0%}")
            for after, gone, share in shares
        ]
        page.print()
        page.print(table(("after", "have left", "calls", ""), bars, numbers=("after", "calls", "")))
    if days:
        counts = ("calls each day", "together")
        runs = [
            (f"{run.first:%a %Y-%m-%d}", f"{run.last:%a %Y-%m-%d}", _each_day(run), f"{run.calls:,}")
            for run in days
        ]
        page.print()
        page.print(table(("from day", "to day", *counts), runs, numbers=counts))


def _each_day(run: Days) -> str:
    return f"{run.most:,}" if run.least == run.most else f"{run.least:,} or {run.most:,}"


def _marks(calls: int, nth: tuple[int, ...]) -> list[int]:
    for number in nth:
        whole("nth", number, most=calls)
    quarters = (-(-calls * part // 4) for part in (1, 2, 3))
    return sorted({1, *quarters, calls, *nth})


def _curve(planned: PlannedDepartures, start_us: int) -> list[tuple[int, int]]:
    """How many calls have left after each of a few equal steps of time."""
    length = planned.leaves_us(planned.calls) - start_us
    steps = [-(-length * step // _STEPS) for step in range(_STEPS + 1)] if length else [0]
    return [(after, planned.gone_by(start_us + after)) for after in steps]


def _override(store: str | None, name: str, key: str | None) -> Override | None:
    """The override that operators have set for a key of a policy, or for the policy."""
    with closing(open_store(store)) as opened:
        opened.read_overrides(name)
        return opened.settings(name).known.choose("default" if key is None else key)


def _budget(quota: str, tz: str | None) -> Quota:
    try:
        budget = Quota(quota)
    except ConfigError as error:
        raise error.within("quota") from None
    # Periods of equal spans do not depend on midnight, and so not on a zone.
    return Quota(quota, tz=tz) if budget.per in ("day", "week", "month") else budget


def _instant_us(text: str | None, zone: tzinfo) -> int:
    if text is None:
        return int(time.time()) * SECOND_US
    try:
        moment = datetime.fromisoformat(text)
        instant = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
        instant_us = round(instant.timestamp() * SECOND_US)
    except (ValueError, OverflowError):
        fix = "write 2026-11-21, 2026-11-21T09:00 or 2026-11-21T09:00+01:00"
        raise CommandError(f"start={text!r} is not an instant; {fix}") from None
    if not 0 <= instant_us <= _LATEST_US:
        raise CommandError(f"start={text!r} is not between the years 1970 and 2100; begin later or earlier")
    return instant_us


def _iso(instant_us: int, zone: tzinfo) -> str:
    return datetime.fromtimestamp(instant_us / SECOND_US, zone).isoformat(timespec="milliseconds")
