"""What is nearly right: valid texts and values with a few mistakes in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

SPLINTERS = (
    *("", " ", "\n", "\t", "\0", "\ufeff", "\u200b", "\ud800", "µ", "٣", "１", "ﬁ", "😀", "\x1b[2J"),
    *("-", "+", ".", ",", ";", ":", "/", "\\", "%", "_", "'", '"', "(", ")", "[", "]", "{", "}", "}{", "{{"),
    *("0", "1", "9", "00", "1e9", "1E400", "0x1", "1_0", "_", "NaN", "inf", "-0", "null", "true", "None"),
    *("9" * 20, "9" * 400, "0" * 400, "[" * 400, "{" * 400, "a" * 4_000),
)
"""What people and machines leave behind in texts."""
NUMBERS = (
    *(0, 1, -1, 2, 3, 10, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), 10**12, 10**12 + 1, 10**400),
    *(0.0, -0.0, 0.1, 1.5, 1e-9, 1e300, 5e-324, float("nan"), float("inf"), float("-inf")),
    *(True, False),
)
VALUES = (*NUMBERS, *SPLINTERS, None, b"", b"\xff", (), [], {}, [[]], [None], {"": None}, {"a": {"b": []}})
"""What stands where something else was meant."""


@st.composite
def texts(draw: st.DrawFn, valid: Sequence[str]) -> str:
    """One of the valid texts, or two of them joined, after a few mistakes."""
    text = draw(st.sampled_from(valid))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 8)))
        put = draw(
            st.one_of(
                st.sampled_from(SPLINTERS),
                st.text(max_size=3),
                st.sampled_from(valid),
                st.just(text[start:end] * 2),
            )
        )
        text = text[:start] + put + text[end:]
    return text


def anything(valid: Sequence[str]) -> st.SearchStrategy[str]:
    """Text that is nearly valid, or has no intention to be."""
    return st.one_of(texts(valid), texts(valid), st.text(max_size=40))


values: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(VALUES),
    st.integers(),
    st.floats(),
    st.text(max_size=10),
    st.binary(max_size=5),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
)
"""Any value."""


@st.composite
def tables(draw: st.DrawFn, valid: dict[str, Sequence[Any]], more: Sequence[str] = ()) -> dict[str, Any]:
    """Some of the fields with some of their valid values, a few of them replaced, renamed or added."""
    names = draw(st.lists(st.sampled_from(sorted(valid)), max_size=6, unique=True))
    table = {name: draw(st.sampled_from(list(valid[name]))) for name in names}
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from([*sorted(valid), *more]) | st.text(max_size=6))
        table[name] = draw(values)
    return table
