"""`shapekit top`: a live table of the keys of a store."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast
from urllib.parse import urlsplit

import click
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.queue.adaptive import AdaptiveQueue
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.cli.output import (
    clock,
    console,
    counted,
    json_option,
    limit_text,
    open_store,
    print_json,
    printable,
    span,
    store_option,
    table,
)
from shapekit.errors import StoreUnavailableError
from shapekit.rate import SECOND_US
from shapekit.stores.encoding import LiveKey

if TYPE_CHECKING:
    from shapekit.stores.redis import RedisStore


Survey: TypeAlias = Callable[[str], Iterator[LiveKey]]
"""Returns the live keys whose `name:key` begins with a text; can be called repeatedly."""


@contextmanager
def open_survey(where: str | None) -> Iterator[Survey]:
    """A survey of the store at a URL or in a file, which changes nothing there."""
    if where and Path(where).is_file():
        # A SQLiteStore would wait for its lock behind deciding calls, which a read need not do.
        from shapekit.stores.sqlite import SqliteSurvey  # noqa: PLC0415 - not needed for Redis

        yield SqliteSurvey(where).live_keys
        return
    # Otherwise a Redis, or an error.
    with closing(cast("RedisStore", open_store(where))) as store:
        yield store.survey


def place_of(where: str) -> str:
    """The store as a headline shows it, without a password."""
    if "://" not in where:
        return Path(where).name
    parts = urlsplit(where)
    if not parts.hostname:
        return Path(parts.path).name
    return f"{parts.scheme}://{parts.hostname}:{parts.port or 6379}{parts.path}"


try:
    import termios
    import tty
except ImportError:  # Windows, where only Ctrl-C works
    termios = tty = None  # type: ignore[assignment]


@contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """Yields a function that waits for some seconds at most, and returns the keys pressed, or empty text."""
    if termios is None or tty is None or not sys.stdin.isatty():
        yield _nobody
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(seconds: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), 1_024).decode(errors="replace") if ready else ""


def _nobody(seconds: float) -> str:
    time.sleep(seconds)
    return ""


UNKNOWN = "(unknown: its program has not told its name)"
DAMAGED = "(damaged: shapekit reset repairs it)"


class LimitUse(NamedTuple):
    """How much of one limit is in use."""

    limit: str
    used: int
    most: int


class Row(NamedTuple):
    """The state of a key; instants are epoch seconds of civil time."""

    key: str
    limit: str
    wait: float | None
    """Seconds until a call that comes now would leave; None if the store does not say."""
    next_at: float | None
    """When that call would leave."""
    held: float
    """Seconds for which no call leaves."""
    held_until: float | None
    uses: tuple[LimitUse, ...]
    waiting: int | None
    """Calls that have a slot, or wait for a permit, and have not left; None if the store does not say."""
    per_second: float | None
    """Slots taken per second since the last look; None at the first one, and if the store does not say."""

    @property
    def fullest(self) -> float:
        """The fraction in use of the limit that is used most."""
        return max([use.used / use.most for use in self.uses], default=0.0)


def row_of(seen: LiveKey, per_second: float | None = None) -> Row:
    """The row of a key that was read from the store."""
    wait_us: int | None = None
    waiting, held_us = None, 0
    if isinstance(seen.program, Concurrency):
        in_flight, waiting = seen.program.standing(seen.state, seen.now_us)
        if not waiting and in_flight < seen.program.limit:
            wait_us = 0  # else until a call ends
    elif isinstance(seen.program, LeakyQueue):
        waiting = seen.program.waiting(seen.state, seen.now_us)
        wait_us, _ = seen.program.outlook(seen.state, seen.now_us, 1, 1, seen.skew_us)
        held_us = max(0, seen.program.confirm(seen.state, seen.now_us)[2] - seen.now_us)
    elif seen.program is not None:
        forecast = seen.program.forecast(seen.state, seen.now_us, 1, seen.skew_us)
        wait_us = max(0, forecast.admits_at_us - seen.now_us)
    civil_us = seen.now_us + seen.skew_us
    return Row(
        seen.shown,
        _limit(seen),
        None if wait_us is None else wait_us / SECOND_US,
        None if wait_us is None else (civil_us + wait_us) / SECOND_US,
        held_us / SECOND_US,
        (civil_us + held_us) / SECOND_US if held_us else None,
        _uses(seen),
        waiting,
        per_second,
    )


def _limit(seen: LiveKey) -> str:
    if seen.program is not None:
        return limit_text(seen.program) + _found(seen)
    return DAMAGED if seen.is_damaged else UNKNOWN


class Looks:
    """Reads a store repeatedly, and compares with the previous look to count the slots taken in between."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._seen: dict[tuple[str, str, str], LiveKey] = {}

    def rows(self) -> list[Row]:
        """A row for each key in use."""
        before, self._seen = self._seen, {live_key[:3]: live_key for live_key in self._survey("")}
        # A key that was not in use at the previous look counts from the time of that look.
        last_us = max((live_key.now_us for live_key in before.values()), default=None)
        return [
            row_of(seen, _per_second(seen, before.get(place), last_us)) for place, seen in self._seen.items()
        ]


def _per_second(seen: LiveKey, before: LiveKey | None, last_us: int | None) -> float | None:
    """Slots taken per second since the previous look, at which the key may not have been in use."""
    if last_us is None or not isinstance(seen.program, LeakyQueue):
        return None
    state = None
    if before is not None:
        if before.program is None or before.program.kind != seen.program.kind:
            return None
        state, last_us = before.state, before.now_us
    taken = seen.program.taken_since(seen.state, state)
    passed_s = (seen.now_us - last_us) / SECOND_US
    return None if taken is None or passed_s <= 0 else taken / passed_s


def _found(seen: LiveKey) -> str:
    """The rate that a key has now, if it is adaptive."""
    if not isinstance(seen.program, AdaptiveQueue):
        return ""
    _, _, _, _, _, *clock = seen.program.confirm(seen.state, seen.now_us)
    return f", now {seen.program.per_second(clock[1]):.3g}/s" if clock else ""


def _uses(seen: LiveKey) -> tuple[LimitUse, ...]:
    """The use of all limits of a key other than its pace."""
    if seen.program is None:
        return ()
    if isinstance(seen.program, Concurrency):
        in_flight, _ = seen.program.standing(seen.state, seen.now_us)
        return (LimitUse(limit_text(seen.program), in_flight, seen.program.limit),)
    leaves = seen.program.leaves(seen.state, seen.now_us, seen.skew_us)
    peeks = [(limit_text(leaf.limit), leaf.peek()) for leaf in leaves]
    return tuple(LimitUse(limit, peeked.current, peeked.limit) for limit, peeked in peeks)


REFRESH_S = 1.0
COLUMNS = ("key", "limit", "waiting", "calls/s", "wait", "next slot", "held until", "used")
_NUMBERS = ("waiting", "calls/s", "wait", "next slot")
_ORDERS: dict[str, Callable[[Row], Any]] = {
    "wait": lambda row: (-(row.wait or 0), row.key),
    "key": lambda row: row.key,
    "held": lambda row: (-row.held, -(row.wait or 0), row.key),
    "used": lambda row: (-row.fullest, row.key),
}
_FRAME = 5
"""Lines of a page that are not rows: the headline, a gap, the columns' names and their rule, a last line."""
_WIDEST_KEY = 40
"""A longer key is printed whole, and the rest of its line is out of column: users may choose any key."""
_CUT = {0: 1.0, 1: 0.3, 7: 0.25}
"""The columns that are cut if not all fit, and the largest part of the room that each may take."""
_LEAST = 6
_GAP = 2
"""The space between two columns."""
_ROOM = {"calls/s": len("1,000.0"), "wait": len("59 min 59 s")}
"""The least widths of columns whose cells often change in length."""


@click.command()
@store_option
@click.option(
    "--sort", type=click.Choice([*_ORDERS]), default="wait", show_default=True, help="The order of the rows."
)
@click.option("--filter", "part", default="", metavar="TEXT", help="Only keys that contain this.")
@click.option("--once", is_flag=True, help="Print the table once.")
@json_option
def top(store: str | None, sort: str, part: str, once: bool, as_json: bool) -> None:
    """Show a live table of the keys of a store.

    For each key that is in use: its limit, how many calls wait, how many slots were taken per second since
    the table was last drawn, how long a call that comes now would wait and when it would leave, until when
    the key is held, and how much is used of each limit and quota. "-" means that the store does not say.

    Nothing is written, and no lock is taken. `q` quits. If the output is not a terminal, or one that cannot
    be redrawn (TERM=dumb), the table is printed once.
    """
    out = console()
    with open_survey(store) as survey:
        if as_json:
            rows = _sorted(Looks(survey).rows(), sort, part)
            print_json([{**row._asdict(), "uses": [use._asdict() for use in row.uses]} for row in rows])
        elif once or not out.is_terminal or out.is_dumb_terminal:
            rows = _sorted(Looks(survey).rows(), sort, part)
            click.echo("\n".join([_headline(rows, store).plain, "", *_lines(rows)]))
        else:
            _watch(out, survey, sort, part, store)


def _watch(out: Console, survey: Survey, sort: str, part: str, store: str | None) -> None:
    looks, page = Looks(survey), Page()
    rows, trouble = _sorted(looks.rows(), sort, part), ""
    with keyboard() as pressed, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            headline = _headline(rows, store, "q quits")
            if trouble:
                headline.append(f"\n{trouble}; this is what was last seen", style="bold")
            visible = rows[: max(1, out.height - _FRAME)]
            live.update(Group(headline, Text(), page.table(visible, out.width)), refresh=True)
            if "q" in pressed(REFRESH_S):
                return
            try:
                rows, trouble = _sorted(looks.rows(), sort, part), ""
            except StoreUnavailableError as error:
                trouble = str(error)


def _sorted(rows: Iterable[Row], sort: str, part: str) -> list[Row]:
    return sorted((row for row in rows if part in row.key), key=_ORDERS[sort])


def _headline(rows: Sequence[Row], store: str | None, more: str = "") -> Text:
    held, waiting = (
        sum(row.held > 0 for row in rows),
        sum(bool(row.waiting if row.wait is None else row.wait) for row in rows),
    )
    now = datetime.now(UTC).astimezone()
    return Text.assemble(
        (counted(len(rows), "key"), "bold"),
        f", {waiting} with a wait, {held} held   {place_of(store or '')}   {now:%H:%M:%S}   {more}".rstrip(),
    )


class Page:
    """The table on a terminal; its columns never get narrower, so that they do not jump."""

    def __init__(self) -> None:
        self._widths = [max(len(name), _ROOM.get(name, 0)) for name in COLUMNS]

    def table(self, rows: Iterable[Row], width: int) -> Table:
        """A line for each key. If not all fits, keys, limits and uses are cut, but not the waits."""
        lines = [_cells(row) for row in rows]
        for line in lines:
            self._widths = [max(wide, cell_len(cell)) for wide, cell in zip(self._widths, line, strict=True)]
        shown = [*range(len(COLUMNS))]
        if self._room(width, shown) < 0:
            shown.remove(COLUMNS.index("next slot"))  # the wait says the same
        room = self._room(width, shown)
        columns, *cells = [[line[place] for place in shown] for line in (COLUMNS, *lines)]
        made = table(columns, cells, numbers=_NUMBERS)
        spare = left = room + sum(self._widths[cut] for cut in _CUT)
        for place, column in reversed([*zip(shown, made.columns, strict=True)]):
            wide = self._widths[place]
            if place in _CUT and room < 0:
                # The key, which comes last here, gets what the other columns leave.
                wide = min(wide, max(_LEAST, int(_CUT[place] * spare) if place else left))
                left -= wide
            column.no_wrap, column.overflow, column.width = True, "ellipsis", wide
        return made

    def _room(self, width: int, shown: Sequence[int]) -> int:
        """The width that is left beside these columns; below 0 if they do not fit."""
        return width - sum(self._widths[place] for place in shown) - _GAP * (len(shown) - 1)


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each key, without cuts: fit for grep, and quick for any number of keys."""
    lines = [COLUMNS, *map(_cells, rows)]
    key, *others = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    widths = [min(_WIDEST_KEY, key), *others]
    for line in lines:
        # Letters of some languages are two cells wide.
        cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    held = "" if row.held_until is None else clock(row.held_until)
    uses = ", ".join(f"{use.used}/{use.most}" for use in row.uses)
    waiting = "-" if row.waiting is None else f"{row.waiting:,}"
    per_second = "-" if row.per_second is None else f"{row.per_second:,.1f}"
    wait, next_slot = "-", "-"
    if row.wait is not None and row.next_at is not None:
        wait, next_slot = span(row.wait), clock(row.next_at) if row.wait else "now"
    key, limit = printable(row.key), printable(row.limit)
    return key, limit, waiting, per_second, wait, next_slot, held, uses
