"""Simulate: what strategies make of the same arrivals."""

from __future__ import annotations

from typing import Any

import click

from shapekit._runtime.sleepers import max_wait_us
from shapekit.cli.arrivals import Arrivals
from shapekit.cli.output import console, counted, is_plain, json_option, print_json, span_words, table
from shapekit.cli.picture import check_target, save, sketch
from shapekit.cli.race import Contender, Race, Run
from shapekit.rate import SECOND_US

__all__ = ["simulate"]


@click.command
@click.argument("strategies", nargs=-1, required=True, metavar="STRATEGY...")
@click.option(
    "--arrivals", required=True, metavar="HOW|FILE", help='poisson:20/s, "burst:50 every 10s", or trace.csv.'
)
@click.option("--for", "length", metavar="TIME", help="How long calls come: 60s; of a file, all of it.")
@click.option(
    "--max-wait", metavar="TIME", help="shaper refuses what would wait longer. No bound if not given."
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed, the same arrivals.")
@click.option("--out", metavar="FILE.svg|png", help='Draw a picture (pip install "shapekit[plot]").')
@json_option
def simulate(
    strategies: tuple[str, ...],
    arrivals: str,
    length: str | None,
    max_wait: str | None,
    seed: int,
    out: str | None,
    as_json: bool,
) -> None:
    """Let the same calls come to each STRATEGY, on virtual time, and compare what becomes of them.

    \b
    A STRATEGY is NAME:RATE, or NAME:RATE+BURST with the burst at the end:
      gcra:10/s+20    token:10/s+20   leaky:10/s+20    admits or refuses at once
      fixed:600/m     sliding:600/m   log:600/m        windows; they take no burst
      quota:1000/day  a budget for each month, week or day
      shaper:10/s+5   "shaper:10/s; 600/m+5"           delays; its burst is 1 if not given

    \b
    Arrivals:
      poisson:20/s           independent of each other, 20 a second on average
      uniform:20/s           evenly spaced
      "burst:50 every 10s"   50 at once, again and again
      trace.csv trace.jsonl  real ones: epoch seconds or ISO 8601 (UTC if it names no zone), one a line;
                             in a column or field "at", "time", "timestamp", "ts" or "t"

    Made-up arrivals begin at 1970-01-01 00:00 UTC, where windows and days begin too. The row "unshaped"
    is what happens without any limit.

    \b
    shapekit simulate --arrivals poisson:20/s --for 60s gcra:10/s+20 fixed:600/m shaper:10/s
    """
    if out is not None:
        check_target(out)
    contenders = [Contender.parse(text) for text in strategies]
    bound_us = max_wait_us(max_wait)
    race = Race.run(Arrivals.parse(arrivals, length, seed), contenders, bound_us)
    if as_json:
        print_json(
            {
                "arrivals": arrivals,
                "calls": len(race.arrivals.instants_us),
                "for_s": race.arrivals.length_us / SECOND_US,
                "seed": seed,
                "runs": [_plain(run, race) for run in race.runs],
            }
        )
    else:
        _print(race)
    if out is not None:
        save(race, out)
        if not as_json:
            click.echo(f"drawn: {out}")


def _plain(run: Run, race: Race) -> dict[str, Any]:
    waits = {"p50": run.wait_us(0.5), "p99": run.wait_us(0.99), "longest": run.wait_us(1)}
    return {
        "strategy": run.name,
        "left": len(run.departures_us),
        "refused": run.refused,
        "worst_windows": [
            {"window_s": window / SECOND_US, "calls": run.worst(window)} for window in race.windows_us
        ],
        "wait_s": {name: None if wait is None else wait / SECOND_US for name, wait in waits.items()},
    }


def _print(race: Race) -> None:
    page = console()
    calls, length = counted(len(race.arrivals.instants_us), "call"), span_words(race.arrivals.length_us)
    page.print(f"{calls} in {length}: {race.arrivals.told}\n")
    for line in sketch(race, page.width - 14, plain=is_plain(page)):
        page.print(line)
    worst = [f"most in\n{span_words(window)}" for window in race.windows_us]
    columns = ("strategy", "left", "refused", *worst, "wait\np50", "wait\np99")
    rows = [
        (
            run.name,
            f"{len(run.departures_us):,}",
            f"{run.refused:,}",
            *(f"{run.worst(window):,}" for window in race.windows_us),
            *("-" if wait is None else span_words(wait) for wait in (run.wait_us(0.5), run.wait_us(0.99))),
        )
        for run in race.runs
    ]
    page.print()
    page.print(table(columns, rows, numbers=columns[1:]))
