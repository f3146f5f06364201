"""Output: what a command prints, for a terminal, for a pipe, and for machines.

Rich decides on colours: none where the output is no terminal, none under NO_COLOR. What is said by a
colour is always said in words too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["bar", "console", "is_plain", "json_option", "print_json", "table"]

Command = TypeVar("Command", bound=Callable[..., Any])

PIPE_WIDTH = 100
"""How wide a page is that no terminal bounds."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def json_option(command: Command) -> Command:
    """The option `--json`, which a command is given as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")(command)


def print_json(value: Any) -> None:
    """Print `value` as JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def console() -> Console:
    """Where a command prints; made anew for each command, as the streams of a process may change."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)


def is_plain(page: Console) -> bool:
    """Whether only the letters of ASCII can be shown."""
    return page.options.ascii_only


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> Table:
    """A table; the columns named in `numbers` are flush right and whole; the others may fold."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        if column in numbers:
            made.add_column(column, justify="right", no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def bar(part: float | Fraction, width: int, *, plain: bool = False) -> str:
    """A bar that fills `part` (0 to 1) of `width` cells; with `plain`, of letters that every terminal has."""
    eighths = round(min(max(part, 0), 1) * width * 8)
    if plain:
        return "#" * round(eighths / 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
