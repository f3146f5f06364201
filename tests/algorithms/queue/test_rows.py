"""Rows in pages, against a plain list: what is kept, and how many pages that takes."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.algorithms import rows

numbers = st.lists(st.integers(0, 400), max_size=200, unique=True).map(sorted)


def of(kept):
    return [(number,) for number in kept]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    monkeypatch.setattr(rows, "PAGE", 4)


@given(numbers, st.integers(0, 400), st.integers(0, 9))
def test_a_change_keeps_all_other_rows_in_few_pages(kept, number, added):
    pages = rows.paged(of(kept))
    assert list(rows.flat(pages)) == of(kept)
    low, high, near, index = rows.around(pages, number)
    at = bisect_left(kept, number)
    assert [*rows.flat(pages[:low]), *near[:index]] == of(kept[:at])
    assert [*near[index:], *rows.flat(pages[high:])] == of(kept[at:])

    new = [(number, place) for place in range(added)]
    put = (*near[:index], *new, *near[index:])
    changed = rows.put(pages, low, high, put)
    assert list(rows.flat(changed)) == [*of(kept[:at]), *new, *of(kept[at:])]
    assert all(0 < len(page) <= 4 for page in changed)
    # Rows that fit into one page are in one.
    assert len(changed) == len(pages[:low]) + -(-len(put) // 4) + len(pages[high:])


@given(numbers)
def test_the_rows_on_both_sides_of_a_number_are_seen_also_across_pages(kept):
    pages = rows.paged(of(kept))
    for number in range(402):
        _, _, near, index = rows.around(pages, number)
        at = bisect_left(kept, number)
        assert near[:index][-1:] == tuple(of(kept[:at][-1:]))
        assert near[index : index + 1] == tuple(of(kept[at : at + 1]))


@given(numbers.filter(len))
def test_a_row_goes_from_either_end_or_from_between(kept):
    pages = rows.paged(of(kept))
    gone = kept[len(kept) // 2]
    assert list(rows.flat(rows.without(pages, (gone,)))) == of(number for number in kept if number != gone)
    first, last = rows.without_first(pages), rows.without_last(pages)
    assert (list(rows.flat(first)), list(rows.flat(last))) == (of(kept[1:]), of(kept[:-1]))
    assert all(first)
    assert all(last)


@given(numbers)
def test_rows_go_one_after_the_other_until_none_is_left(kept):
    fore = back = rows.paged(of(kept))
    for number in range(1, len(kept) + 1):
        fore, back = rows.without_first(fore), rows.without_last(back)
        assert list(rows.flat(fore)) == of(kept[number:])
        assert list(rows.flat(back)) == of(kept[:-number])
