"""Rows: an ordered list of number rows in pages, so that a change copies only a few of them.

>>> numbers = paged([(number,) for number in range(0, 300, 2)])
>>> low, high, near, index = around(numbers, 7)
>>> near[index - 1], near[index]
((6,), (8,))
>>> changed = put(numbers, low, high, (*near[:index], (7,), *near[index:]))
>>> count(changed), flat(changed)[3:5]
(151, ((6,), (7,)))

The twin keeps rows in one string, which it can search without reading all of it: each number below 2^53 has
eight digits of seven bits.

>>> read(text([(1, 2), (300, 4)]), 2)
((1, 2), (300, 4))
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

PAGE = 64
"""The most rows of a page: few pages hold what a line may remember, and to copy one is cheap."""
_DIGITS = 8

Page: TypeAlias = tuple[Any, ...]
Pages: TypeAlias = tuple[Page, ...]
"""None of the pages is empty. Rows ascend by their first number."""

_first: Callable[[Any], Any] = itemgetter(0)


def paged(rows: Sequence[Any]) -> Pages:
    """The rows in pages, all about equally full: one row too many does not get a page of its own."""
    size = -(-len(rows) // -(-len(rows) // PAGE)) if rows else 1
    return tuple([tuple(rows[at : at + size]) for at in range(0, len(rows), size)])


def flat(pages: Pages) -> Page:
    """All rows."""
    return tuple(chain.from_iterable(pages))


def count(pages: Pages) -> int:
    """The number of rows."""
    return sum(map(len, pages))


def around(pages: Pages, number: int) -> tuple[int, int, Page, int]:
    """The pages, from and to, with the rows around a number; these rows; how many begin below the number."""
    if len(pages) <= 1:
        near = pages[0] if pages else ()
        return 0, 1, near, bisect_left(near, number, key=_first) if near else 0
    # If a page begins with the number, the row below is the last one of the page before.
    low = max(0, bisect_left(pages, number, key=lambda page: _first(page[0])) - 1)
    near = pages[low] if low + 1 == len(pages) else pages[low] + pages[low + 1]
    return low, low + 2, near, bisect_left(near, number, key=_first)


def put(pages: Pages, low: int, high: int, rows: Page) -> Pages:
    """The pages with those from `low` to `high` replaced by these rows."""
    if 0 < len(rows) <= PAGE:
        return (*pages[:low], rows, *pages[high:])
    return (*pages[:low], *paged(rows), *pages[high:])


def without_first(pages: Pages) -> Pages:
    """The pages without the first row."""
    return (pages[0][1:], *pages[1:]) if len(pages[0]) > 1 else pages[1:]


def without_last(pages: Pages) -> Pages:
    """The pages without the last row."""
    return (*pages[:-1], pages[-1][:-1]) if len(pages[-1]) > 1 else pages[:-1]


def without(pages: Pages, row: Any) -> Pages:
    """The pages without this row."""
    low, high, near, index = around(pages, row[0])
    return put(pages, low, high, (*near[:index], *near[index + 1 :]))


def mapped(pages: Pages, change: Callable[[Any], Any]) -> Pages:
    """The pages with each row changed, so that they still ascend."""
    return tuple([tuple(map(change, page)) for page in pages])


def inspect(pages: Any, width: int, most: int) -> None:
    """Raise if rows from a store are malformed or too many."""
    if count(pages) > most or not all(pages):
        raise ValueError("too many rows, or an empty page")
    for row in flat(pages):
        sum(row)
        if len(row) != width:
            raise ValueError("malformed row")


def text(rows: Iterable[Iterable[int]]) -> str:
    """The rows in the form of the twin."""
    return "".join([chr(number >> up & 127) for row in rows for number in row for up in range(49, -1, -7)])


def read(text: str | bytes, width: int) -> Any:
    """The rows in a string from the twin."""
    digits = text.encode() if isinstance(text, str) else text
    numbers = [0] * (len(digits) // _DIGITS)
    for at, digit in enumerate(digits):
        numbers[at // _DIGITS] = numbers[at // _DIGITS] << 7 | digit
    return tuple(zip(*[iter(numbers)] * width, strict=True))
