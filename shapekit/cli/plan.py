"""Plan: when many calls will have left."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from shapekit.algorithms.quota import Quota
from shapekit.cli.complaint import Complaint
from shapekit.cli.course import Course
from shapekit.cli.output import bar, console, is_plain, json_option, print_json, table
from shapekit.cli.words import counted, instant_words, ordinal, span_words
from shapekit.manual_clock import ManualClock
from shapekit.policy import Policy
from shapekit.rate import SECOND_US, whole

__all__ = ["plan"]

_STEPS = 12
_WIDEST_BAR = 50
_LATEST_US = int(datetime(2100, 12, 31, tzinfo=UTC).timestamp()) * SECOND_US


@click.command
@click.argument("rate", required=False)
@click.option("--calls", metavar="N", type=int, required=True, help="How many calls ask at once.")
@click.option("--nth", metavar="N", type=int, multiple=True, help="Also say when the N-th call leaves.")
@click.option("--quota", metavar="QUOTA", help='A budget beside the rate: "1_000_000/month".')
@click.option("--burst", metavar="N", type=int, help="How many may leave at once after idling.")
@click.option("--cost", metavar="N", type=int, default=1, help="What each call costs.")
@click.option("--start", metavar="TIME", help="When they ask: 2026-11-21T09:00, in --tz. Now if not given.")
@click.option(
    "--tz", metavar="ZONE", help="The zone of --start, of the quota and of what is printed: Europe/Berlin."
)
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
    as_json: bool,
) -> None:
    """Say when the first, the n-th and the last of N calls leave under RATE.

    RATE is one rate or several: "10/s", "10/s; 1000/h". The shaper itself decides, on virtual time that
    begins at --start, with nobody else calling. Several rates and quotas are played call by call, up to a
    million calls.

    \b
    shapekit plan "10/s; 1000/h" --calls 5000
    shapekit plan 25/s --calls 100000 --quota 50_000/day --tz Europe/Berlin
    """
    if rate is None and quota is None:
        raise Complaint('nothing is given to plan by; give a rate such as "10/s", or --quota')
    zone = _zone(tz)
    start_us = _instant_us(start, zone)
    numbers = _marks(whole("calls", calls), nth)
    policy = Policy(
        rate,
        burst=burst,
        quota=None if quota is None else _budget(quota, tz),
        clock=ManualClock(start_us / SECOND_US),
    )
    course = Course(policy, calls, cost, start_us, show=sys.stderr.isatty() and not as_json)
    marks = [(number, course.leaves_us(number)) for number in numbers]
    days = [] if quota is None else list(course.days(zone))
    if as_json:
        print_json(
            {
                "rate": rate,
                "quota": quota,
                "burst": policy.shaper.queue.burst,
                "cost": cost,
                "calls": calls,
                "start": _iso(start_us, zone),
                "departures": [
                    {"call": number, "after_s": (at - start_us) / SECOND_US, "at": _iso(at, zone)}
                    for number, at in marks
                ],
                "curve": [
                    {"after_s": after / SECOND_US, "calls": gone} for after, gone in _curve(course, start_us)
                ],
                "days": [
                    {"from": run.first.isoformat(), "to": run.last.isoformat(), "calls": run.calls}
                    for run in days
                ],
            }
        )
        return
    page = console()
    limits = " and ".join(text for text in (rate, quota and f"a quota of {quota}") if text)
    zone_name = tz or "UTC"
    page.print(f"{counted(calls, 'call')} under {limits}, from {instant_words(start_us, zone)} {zone_name}\n")
    rows = [
        (ordinal(number), "at once" if at == start_us else span_words(at - start_us), instant_words(at, zone))
        for number, at in marks
    ]
    page.print(table(("call", "leaves after", f"at ({zone_name})"), rows, numbers=("call", "leaves after")))
    _draw(page, course, start_us)
    if days:
        runs = [(f"{run.first:%a %Y-%m-%d}", f"{run.last:%a %Y-%m-%d}", f"{run.calls:,}") for run in days]
        page.print()
        page.print(table(("from day", "to day", "calls that leave"), runs, numbers=("calls that leave",)))


def _marks(calls: int, nth: tuple[int, ...]) -> list[int]:
    for number in nth:
        whole("nth", number, most=calls)
    quarters = (-(-calls * part // 4) for part in (1, 2, 3))
    return sorted({1, *quarters, calls, *nth})


def _curve(course: Course, start_us: int) -> list[tuple[int, int]]:
    """How many have left after each of a few equal steps of time."""
    length = course.leaves_us(course.calls) - start_us
    steps = [-(-length * step // _STEPS) for step in range(_STEPS + 1)] if length else [0]
    return [(after, course.gone_by(start_us + after)) for after in steps]


def _draw(page: Any, course: Course, start_us: int) -> None:
    curve = _curve(course, start_us)
    if len(curve) == 1:
        return
    plain = is_plain(page)
    width = max(10, min(_WIDEST_BAR, page.width - 45))
    rows = [
        (
            span_words(after),
            bar(gone / course.calls, width, plain=plain).ljust(width),
            f"{gone:,}",
            f"{gone / course.calls:.0%}",
        )
        for after, gone in curve
    ]
    page.print()
    page.print(table(("after", "have left", "calls", ""), rows, numbers=("after", "calls", "")))


def _budget(quota: str, tz: str | None) -> Quota:
    budget = Quota(quota)
    # Equal spans have no midnight for a zone to move.
    return Quota(quota, tz=tz) if budget.per in ("day", "week", "month") else budget


def _zone(tz: str | None) -> tzinfo:
    try:
        return UTC if tz is None else ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        fix = 'name one such as "Europe/Berlin"; where the system has no zone data, pip install tzdata'
        raise Complaint(f"tz={tz!r} is not a known time zone; {fix}") from None


def _instant_us(text: str | None, zone: tzinfo) -> int:
    if text is None:
        return int(time.time()) * SECOND_US
    try:
        told = datetime.fromisoformat(text)
        instant = told if told.tzinfo is not None else told.replace(tzinfo=zone)
        instant_us = round(instant.timestamp() * SECOND_US)
    except (ValueError, OverflowError):
        fix = "write 2026-11-21, 2026-11-21T09:00 or 2026-11-21T09:00+01:00"
        raise Complaint(f"start={text!r} is not an instant; {fix}") from None
    if not 0 <= instant_us <= _LATEST_US:
        raise Complaint(f"start={text!r} is not between the years 1970 and 2100; begin later or earlier")
    return instant_us


def _iso(instant_us: int, zone: tzinfo) -> str:
    return datetime.fromtimestamp(instant_us / SECOND_US, zone).isoformat(timespec="milliseconds")
