"""Headers: whatever a server sends, nothing raises, nothing is unbounded, and the exact is read exactly."""

from __future__ import annotations

import math
from base64 import b64encode
from datetime import UTC, datetime, timedelta

from hypothesis import assume, given
from hypothesis import strategies as st

from shapekit.feedback import DIALECTS, Feedback
from shapekit.feedback.fields import (
    LONGEST,
    Member,
    duration,
    http_date,
    parse_list,
    retry_after,
    rfc3339,
    until,
)

from .near import anything, texts

AT = 1_780_056_000.0
MAX_HOLD_S = 900.0
STATUSES = (200, 403, 429, 500, 503, 529)
GOOD = (
    *("0", "1", "120", "1.5", "59999", "1780056030", "1780056030000", "6m0s", "12ms", "1h30m"),
    "100, 100;w=60",
    *("Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"),
    *("2026-05-29T12:00:30Z", "2026-05-29T12:00:30.123+05:30", "global", "user", "40/40", "39.5/40"),
    *('"burst";r=0;t=30', '"a";q=100;w=60, "b";q=5;w=1', "limit=100, remaining=0, reset=30", "0;w=1"),
    *('("a" "b");q=10', ':cHk=:;pk="x"', "@1780056030", "?1", '%"f%c3%bc"', "*/a:b;*=1"),
)
NAMES = sorted(
    {"retry-after", "retry-after-ms", "date", *(name for each in DIALECTS.values() for name in each.reads)}
)
headers = st.lists(
    st.tuples(st.sampled_from(NAMES) | texts(NAMES), anything(GOOD)), max_size=10
)  # names repeat, as they do


@given(st.sampled_from(STATUSES), headers, st.sampled_from(["auto", *DIALECTS]), st.floats(-5, 5))
def test_no_header_raises_or_causes_a_hold_above_the_longest(
    status: int, headers_sent: list[tuple[str, str]], dialect: str, ago: float
) -> None:
    feedback = Feedback(dialect)
    for _ in range(2):
        hint = feedback.read(status, headers_sent, sent_at=AT - ago, received_at=AT)
        if hint is None:
            assert status != 429
            continue
        assert 0 <= hint.hold_s <= MAX_HOLD_S
        for number in (hint.remaining, hint.limit, hint.window_s, hint.reset_s):
            assert number is None or (number >= 0 and math.isfinite(number))
        assert hint.scope is None or len(hint.scope) <= 100


@given(anything(GOOD), st.floats(0, 4e9))
def test_fields_are_finite_numbers_or_none(text: str, now: float) -> None:
    for read in (lambda: duration(text), lambda: rfc3339(text), lambda: http_date(text, now)):
        value = read()
        assert value is None or math.isfinite(value)
    for value in (until(text, now), retry_after(text, now)):
        assert value is None or math.isfinite(value)
    assert (until(text, now) or 0) >= 0


MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001


@given(MOMENTS)
def test_dates_are_read_as_written(moment: datetime) -> None:
    moment = moment.replace(microsecond=0)
    instant = (moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)
    day = f"{moment:%d}"
    for text in (
        f"{moment:%a}, {day} {moment:%b} {moment.year:04} {moment:%H:%M:%S} GMT",
        f"{moment:%a} {moment:%b} {day.lstrip('0').rjust(2)} {moment:%H:%M:%S} {moment.year:04}",
    ):
        assert http_date(text, AT) == instant
    if abs(moment.year - datetime.fromtimestamp(AT, UTC).year) < 49:
        assert http_date(f"{moment:%A}, {day}-{moment:%b}-{moment:%y} {moment:%H:%M:%S} GMT", AT) == instant


@given(MOMENTS, st.integers(-23 * 60, 23 * 60))
def test_timestamps_are_read_as_written(moment: datetime, offset: int) -> None:
    assume(1971 < moment.year < 9999)
    sign, minutes = "-" if offset < 0 else "+", abs(offset)
    there = moment + timedelta(minutes=offset)
    text = f"{there:%Y-%m-%dT%H:%M:%S}.{there.microsecond:06}{sign}{minutes // 60:02}:{minutes % 60:02}"
    seconds = rfc3339(text)
    assert seconds is not None
    assert abs(seconds - moment.timestamp()) < 1e-4


# structured fields, written by the rules of RFC 9651, in all their types

keys = st.from_regex(r"[a-z*][a-z0-9_\-.*]{0,5}", fullmatch=True)
tokens = st.from_regex(r"[A-Za-z*][!#$%&'*+\-.^_`|~:/0-9A-Za-z]{0,6}", fullmatch=True)
strings = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=8)
integers = st.integers(-(10**15) + 1, 10**15 - 1)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def displayed(text: str) -> str:
    encoded = "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b'%"' else f"%{byte:02x}" for byte in text.encode()
    )
    return f'%"{encoded}"'


bare = st.one_of(
    integers.map(lambda number: (number, str(number))),
    integers.map(lambda number: (number, f"@{number}")),
    st.decimals(-999_999, 999_999, places=3).map(lambda number: (float(number), f"{number:.3f}")),
    strings.map(lambda text: (text, quoted(text))),
    st.text(max_size=5).map(lambda text: (text, displayed(text))),
    tokens.map(lambda text: (text, text)),
    st.booleans().map(lambda truth: (truth, f"?{truth:d}")),
    st.binary(max_size=6).map(lambda data: (data, f":{b64encode(data).decode()}:")),
)


@st.composite
def items(draw: st.DrawFn) -> tuple[Member, str]:
    value, text = draw(bare)
    parameters, more = draw(parameter_lists())
    return (value, parameters), text + more


@st.composite
def parameter_lists(draw: st.DrawFn) -> tuple[dict[str, object], str]:
    given_ones = draw(st.dictionaries(keys, bare, max_size=3))
    text = "".join(
        f"; {key}" if value is True and text == "?1" else f";{key}={text}"
        for key, (value, text) in given_ones.items()
    )
    return {key: value for key, (value, _) in given_ones.items()}, text


@st.composite
def members(draw: st.DrawFn) -> tuple[Member, str]:
    if draw(st.booleans()):
        return draw(items())
    inner = draw(st.lists(items(), max_size=3))
    parameters, more = draw(parameter_lists())
    text = " ".join(part for _, part in inner)
    return (tuple(member for member, _ in inner), parameters), f"({text}){more}"


@given(st.lists(members(), max_size=4), st.sampled_from([",", ", ", " ,\t "]))
def test_a_structured_list_is_read_as_it_was_written(pairs: list[tuple[Member, str]], comma: str) -> None:
    read = parse_list(comma.join(text for _, text in pairs))
    assert read == [member for member, _ in pairs]
    assert repr(read) == repr([member for member, _ in pairs]), "1 is not True"


@given(
    st.lists(members(), min_size=1, max_size=3).flatmap(lambda pairs: texts([", ".join(t for _, t in pairs)]))
)
def test_a_damaged_structured_list_is_read_as_a_list_or_none(text: str) -> None:
    read = parse_list(text)
    assert read is None or len(read) <= len(text)
    assert parse_list(text + " " * (LONGEST + 1)) is None, "too long to be read at all"
