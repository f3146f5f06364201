"""`shapekit demo`: the main job, on a machine with nothing but Python.

It draws arrivals at the API in tenths of a second, accepted below, refused on top. What is refused is told by
its pattern as well as by its colour.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from shapekit.cli.demo.server import LIMIT, SECOND_NS, Log, Summary
from shapekit.cli.demo.workers import HEADROOM, NAME, PAUSE_S, RATE, THREADS, WORKERS, Crew
from shapekit.cli.group import Complaint
from shapekit.cli.output import console, is_plain, json_option, print_json, table

__all__ = ["demo"]

ACCEPTED = "#0072b2"
REFUSED = "#e69f00"
FINE = ("▁▂▃▄▅▆▇█", "▒", "┄")
PLAIN = ("    ####", "x", "-")
"""What a chart is made of: eighths of a cell that was accepted, a refused one, and the limit."""
TITLES = ("Without shapekit", "With shapekit")
FIGURES = ("calls", "refused with 429", "accepted a second", "worst second", "wait p50", "wait p99")
OPENING = f"""\
An API allows {LIMIT} calls a second. {WORKERS} processes with {THREADS} threads each want more: first as \
they like, and whoever gets a 429 tries again after {PAUSE_S:g} s; then shaped, through one {{}}.
"""
BUSY = """\
{} shaped calls were still refused: on a machine this busy, calls are late on their way by more than the \
headroom covers."""
CLOSING = f"""\
The workers differ in one line, `with shaper:` around the call, where
    shaper = Shaper("{RATE}", headroom={HEADROOM:g}, name="{NAME}", store={{}})
Headroom shapes {HEADROOM:.0%} below the limit: shapekit spaces departures, the API counts arrivals, and a \
call that is late on its way comes closer to those behind it.
Wait: from when a thread wants a call until it arrives and is accepted. All figures are from the API's log."""
_PER_COLUMN = LIMIT / 10

Columns: TypeAlias = Sequence[tuple[int, int]]
Glyphs: TypeAlias = tuple[str, str, str]
Show: TypeAlias = Callable[[Sequence[Log]], None]
"""Shows the runs so far, the last of which may still go on."""


def chart(columns: Columns, unit: float, size: tuple[int, int], glyphs: Glyphs) -> list[Text]:
    """Rows of cells, the lowest last, each for `unit` calls; only the newest columns if not all fit."""
    eighths, refused, limit = glyphs
    (width, height), rows = size, []
    for row in reversed(range(height)):
        line = Text(no_wrap=True)
        for good, bad in columns[-width:]:
            # A cell that both would share goes to whichever has more of it.
            low = 8 * (round(good / unit) - row) if bad else round(8 * good / unit) - 8 * row
            if low > 0:
                line.append(eighths[min(low, 8) - 1], ACCEPTED)
            elif round((good + bad) / unit) > row:
                line.append(refused, REFUSED)
            else:
                line.append(limit if row == int(_PER_COLUMN / unit) else " ", "dim")
        rows.append(line)
    return rows


def page(out: Console, logs: Sequence[Log], count: int) -> Group:
    """Both runs of `count` tenths of a second, one above the other, on one scale."""
    rows, glyphs = max(3, min(8, (out.height - 10) // 2)), PLAIN if is_plain(out) else FINE
    most = max([sum(column) for log in logs for column in log.columns(count)], default=0)
    unit = max(1, math.ceil(max(most, 2 * _PER_COLUMN) / rows))
    lines = []
    for title, log in zip(TITLES, [*logs, *[Log([], 0, 0)] * 2], strict=False):
        past = log.columns(min(count, log.lasted_ns * 10 // SECOND_NS))
        lines += [
            Text.assemble((title, "bold"), ("   arrivals at the API per 100 ms", "dim")),
            *chart(past, unit, (out.width, rows), glyphs),
            _figures(log.summary()) if log.calls else Text(),
        ]
    eighths, refused, limit = glyphs
    legend = Text.assemble(
        *((eighths[-1], ACCEPTED), " accepted   ", (refused, REFUSED), " refused with 429   "),
        *((limit * 2, "dim"), f" the limit, spread evenly   a row: {unit} calls"),
    )
    return Group(*lines, legend)


def _figures(seen: Summary) -> Text:
    return Text.assemble(
        f"{seen.calls} calls  ",
        (f"{seen.refused} × 429", f"bold {REFUSED}" if seen.refused else ""),
        f"  {seen.rate:.1f} accepted/s  worst second {seen.worst_second}  wait p99 {seen.wait_p99:.2f} s",
    )


@click.command()
@click.option("--redis", "url", metavar="URL", help="Share the rate through Redis instead of a file.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 60),
    default=6,
    show_default=True,
    help="How long each of the two runs lasts.",
)
@json_option
def demo(url: str | None, seconds: float, as_json: bool) -> None:
    """See it work: three processes, one limit, with and without shaping.

    Starts a small API on this machine that allows 50 calls in any second and answers 429 to the others,
    and three worker processes that want more. First they call as they like, then shaped to one rate that
    they share through a file. All figures come from the API's log. Ends by itself; nothing stays behind.
    """
    out, count = console(), round(seconds * 10)
    with _place(url) as where, Crew() as crew:
        if as_json:
            runs = _both(crew, seconds, where, lambda logs: None)
            print_json(_told(runs, seconds, "sqlite" if url is None else "redis"))
            return
        out.print(OPENING.format("SQLite file" if url is None else "Redis"))
        if out.is_terminal:
            with Live(page(out, [], count), console=out) as live:
                runs = _both(crew, seconds, where, lambda logs: live.update(page(out, logs, count)))
        else:
            runs = _both(crew, seconds, where, _lines(out))
    seen = [log.summary() for log in runs]
    titles = [title.lower() for title in TITLES]
    rows = zip(FIGURES, *map(_column, seen), strict=True)
    out.print("", table(("", *titles), rows, numbers=titles), "", sep="\n")
    if seen[1].refused:
        out.print(BUSY.format(seen[1].refused))
    out.print(CLOSING.format("SQLiteStore(…)" if url is None else "RedisStore.from_url(…)"))


def _both(crew: Crew, seconds: float, where: tuple[str, str], show: Show) -> list[Log]:
    """First unshaped, then shaped; a run ends with all of its calls."""
    runs: list[Log] = []
    for place in ((), where):
        if runs:
            time.sleep(1)  # the API still remembers its last second: both runs begin with a clean slate
        log = None
        for log in crew.run(seconds, place):
            show([*runs, log])
        if log is None or not log.calls:
            raise Complaint(f"no call arrived within {seconds:g} s; give it more with --seconds")
        runs.append(log)
    return runs


@contextmanager
def _place(url: str | None) -> Iterator[tuple[str, str]]:
    """Where to share, and the prefix of keys: a new file, or a corner of a Redis, swept afterwards."""
    prefix = f"shapekit-demo-{uuid4().hex[:12]}"
    if url is None:
        with tempfile.TemporaryDirectory(prefix="shapekit-demo-") as folder:
            yield str(Path(folder) / "limits.db"), prefix
        return
    from shapekit.stores.redis import RedisStore  # noqa: PLC0415 - redis is an extra

    store = RedisStore.from_url(url, prefix=prefix)
    list(store.keys())  # one that does not answer is told now
    try:
        yield url, prefix
    finally:
        store.reset_all()
        store.evaluate("return redis.call('DEL', KEYS[1])", [f"{prefix}:program:{NAME}"], [])
        store.close()


def _lines(out: Console) -> Show:
    """A line for each second of a run."""
    told = set()

    def show(logs: Sequence[Log]) -> None:
        title, second = TITLES[len(logs) - 1], logs[-1].lasted_ns // SECOND_NS
        if second and (title, second) not in told:
            told.add((title, second))
            seen = logs[-1].summary()
            out.print(f"{title}, {second} s: {seen.calls} calls, {seen.refused} refused")

    return show


def _column(seen: Summary) -> tuple[str, ...]:
    share = f" ({seen.refused / seen.calls:.0%})" if seen.refused else ""
    waits = f"{seen.wait_p50:.2f} s", f"{seen.wait_p99:.2f} s"
    return f"{seen.calls}", f"{seen.refused}{share}", f"{seen.rate:.1f}", f"{seen.worst_second} calls", *waits


def _told(runs: Sequence[Log], seconds: float, store: str) -> dict[str, Any]:
    told: dict[str, Any] = {"limit_per_second": LIMIT, "seconds": seconds, "workers": WORKERS}
    told |= {"threads": THREADS, "store": store, "rate": RATE, "headroom": HEADROOM}
    for name, log in zip(("unshaped", "shaped"), runs, strict=True):
        accepted, refused = zip(*log.columns(round(seconds * 10)), strict=True)
        per_100_ms = {"accepted": accepted, "refused": refused}
        told[name] = {**log.summary()._asdict(), "arrivals_per_100_ms": per_100_ms}
    return told
