"""Output: printing to a terminal, to a pipe and as JSON; and the options that commands share.

Rich decides on colours: none if the output is not a terminal, none under NO_COLOR. No information is in a
colour alone.

Numbers, spans, instants, rates and limits as people read them:

>>> ordinal(1), ordinal(22), ordinal(113), ordinal(5_000)
('1st', '22nd', '113th', '5,000th')
>>> counted(1, "call"), counted(5_000, "call")
('1 call', '5,000 calls')
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from shapekit import stores
from shapekit.algorithms.compose import Composite
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import Meter
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.ledger import Ledger
from shapekit.algorithms.queue.adaptive import AdaptiveQueue
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.cli.main import CommandError
from shapekit.errors import span_words
from shapekit.rate import SECOND_US, Rate
from shapekit.stores import REDIS
from shapekit.stores.base import Store
from shapekit.stores.encoding import Described

_PERIODS = {unit * SECOND_US: name for unit, name in ((1, "second"), (60, "minute"), (3_600, "hour"))}
_PERIODS |= {86_400 * SECOND_US: "day", 604_800 * SECOND_US: "week"}
_DAY_S = 86_400.0
_FAR_S = 365 * _DAY_S


def counted(number: int, noun: str) -> str:
    """`5,000 calls`, and `1 call`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Text from outside, such as a key, on one line and without characters that control a terminal.

    >>> print(printable("é\\n\\x1b[2J"))
    é\\n\\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join([letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text])


def ordinal(number: int) -> str:
    """`1st`, `5,000th`."""
    teens = number % 100 in (11, 12, 13)
    ending = "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def instant_words(instant_us: int, zone: tzinfo = UTC) -> str:
    """`Sat 2026-11-21 15:10:26`."""
    return datetime.fromtimestamp(instant_us // SECOND_US, zone).strftime("%a %Y-%m-%d %H:%M:%S")


def per_words(period_us: int) -> str:
    """The period of a rate: `minute`, `10 s`."""
    return _PERIODS.get(period_us) or span_words(period_us)


def window_words(window_us: int) -> str:
    """The length of a sliding window: `24 hours`, since `day` would mean a day of the calendar."""
    hours, rest = divmod(window_us, 3_600 * SECOND_US)
    return f"{hours} hours" if hours > 1 and not rest else per_words(window_us)


def rate_words(rate: Rate) -> str:
    """`10 per second`."""
    return f"{rate.limit:,} per {per_words(rate.period_us)}"


def span(seconds: float) -> str:
    """A duration in its two largest units.

    >>> [span(seconds) for seconds in (0, 0.04213, 12.345, 300, 7_265, 31 * 86_400, 1e12)]
    ['0 s', '42.1 ms', '12.3 s', '5 min', '2 h 01 min', '31 d', 'over a year']
    """
    if seconds >= _FAR_S:
        return "over a year"
    whole_us = int(seconds) * SECOND_US
    shown_us = whole_us if seconds >= 60 else round(float(f"{seconds:.3g}") * SECOND_US)
    return " ".join(span_words(shown_us).split()[:4])


def clock(epoch_s: float) -> str:
    """An instant as the operator's clock shows it; with the date if it is nearly a day or more ahead."""
    ahead_s = epoch_s - time.time()
    if ahead_s > _FAR_S:
        return "over a year from now"
    then = datetime.fromtimestamp(epoch_s, UTC).astimezone()
    return f"{then:%H:%M:%S}" if ahead_s < _DAY_S - 60 else f"{then:%Y-%m-%d %H:%M}"


def limit_text(program: Described) -> str:
    """A limit in a few words.

    >>> from shapekit import GCRA, Quota, all_of
    >>> limit_text(all_of(fast=GCRA("10/s"), month=Quota("1_000_000/month")))
    'all_of(gcra 10/s burst 10, quota 1000000/month)'
    """
    if isinstance(program, LeakyQueue):
        text = _numbers_text(program)
        return f"{text}, {'held' if program.is_held else 'set'} by an operator" if program.is_set else text
    if isinstance(program, Concurrency):
        return f"concurrency {program.limit}"
    if isinstance(program, Ledger):
        return limit_text(program.limit)
    if isinstance(program, Composite):
        return f"{program.kind}({', '.join(map(limit_text, program.parts))})"
    if isinstance(program, Quota):
        return f"quota {program.limit}/{program.per}{' spread' if program.spread else ''}"
    if isinstance(program, FixedWindow | SlidingWindow | SlidingWindowLog):
        return f"{program.kind} {_each(program.limit, program.window_us)}"
    assert isinstance(program, Meter)  # noqa: S101 - all that are left
    return f"{program.kind} {_each(program.rate.limit, program.rate.period_us)} burst {program.burst}"


def _each(limit: int, period_us: int) -> str:
    """`100/min`; where the period has no name of its own, `10 per 2 h`."""
    unit = _UNITS.get(period_us)
    return f"{limit}/{unit}" if unit else f"{limit} per {span_words(period_us)}"


def _rate_text(rate: Rate) -> str:
    burst = "" if rate.burst is None else f" burst {rate.burst}"
    return _each(rate.limit, rate.period_us) + burst


_UNITS = {SECOND_US: "s", 60 * SECOND_US: "min", 3_600 * SECOND_US: "h"}
_UNITS |= {86_400 * SECOND_US: "day", 604_800 * SECOND_US: "week"}


def _numbers_text(queue: LeakyQueue) -> str:
    if isinstance(queue, AdaptiveQueue):
        between = f"adaptive {_rate_text(queue.lowest)} to {_rate_text(queue.highest)}"
        return between if queue.burst == 1 else f"{between} burst {queue.burst}"
    parts = [_rate_text(rate) for rate in queue.rates]
    if queue.burst > 1 and not any(rate.burst for rate in queue.rates):
        parts[0] += f" burst {queue.burst}"
    parts += [limit_text(gate) for gate in queue.gates]
    text = "; ".join(parts) or "no rate"
    if queue.pace != "smooth":
        text += f", pace {queue.pace}"
    if queue.headroom:
        text += f", headroom {float(queue.headroom):.3g}"
    return text


VARIABLE = "SHAPEKIT_STORE"
_FIX = f"give --store redis://HOST or --store FILE, or set {VARIABLE}"
PIPE_WIDTH = 100
"""The width of a page that is not on a terminal."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
store_option = click.option(
    "--store",
    metavar="URL|FILE",
    envvar=VARIABLE,
    show_envvar=True,
    help="redis://…, rediss://… or unix://… for Redis, anything else is the file of a SQLiteStore.",
)


def open_store(where: str | None) -> Store:
    """The store at a URL or in an existing file."""
    if not where:
        raise CommandError(f"no store is given; {_FIX}")
    scheme, separator, _ = where.partition("://")
    if separator and not where.startswith(REDIS):
        # The rest may contain a password.
        raise CommandError(f"store='{scheme}://…' has an unknown scheme; {_FIX}")
    if not separator and not Path(where).is_file():
        shown = "(not shown)" if "@" in where else repr(where)
        raise CommandError(f"store={shown} is not a file; {_FIX}")
    # An existing file is a file, even if its name looks like something else.
    return stores.open_store(where if separator else Path(where))[0]


def print_json(value: Any) -> None:
    """Print `value` as JSON in ASCII, without characters that control a terminal."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def console() -> Console:
    """The console of a command; made anew for each one, as the streams of a process may change."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> Table:
    """A table of printable cells; columns in `numbers` are flush right and never folded, others may be."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        if column in numbers:
            made.add_column(column, justify="right", no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*map(printable, row))
    return made


def bar(part: float | Fraction, width: int, *, plain: bool = False) -> str:
    """A bar that fills `part` (0 to 1) of `width` cells; with `plain`, in ASCII."""
    eighths = round(min(max(part, 0), 1) * width * 8)
    if plain:
        return "#" * round(eighths / 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
