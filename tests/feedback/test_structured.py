"""Structured fields: a field that follows the rules reads back exactly, and any other is ignored."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.feedback.fields import LONGEST, parse_dictionary, parse_list

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
ALPHA = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOKEN = ALPHA + "0123456789!#$%&'*+-.^_`|~:/"
KEY = "abcdefghijklmnopqrstuvwxyz0123456789_-.*"


def written(kind, value):
    """A bare item, by the serialisation rules."""
    match kind:
        case "integer" | "token":
            return str(value)
        case "decimal":
            return f"{value / 1000:.3f}"
        case "string":
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case "bytes":
            return f":{b64encode(value).decode()}:"
        case "boolean":
            return f"?{value:d}"
        case "date":
            return f"@{value}"
        case "display":
            plain = PRINTABLE.replace("%", "").replace('"', "")
            return (
                '%"'
                + "".join(c if c in plain else "".join(f"%{b:02x}" for b in c.encode()) for c in value)
                + '"'
            )
    raise AssertionError(kind)


def word(first, rest):
    return st.tuples(st.sampled_from(first), st.text(rest, max_size=6)).map("".join)


integers = st.integers(-(10**15) + 1, 10**15 - 1)
bares = st.one_of(
    st.tuples(st.just("integer"), integers),
    st.tuples(st.just("decimal"), st.integers(-(10**15) + 1, 10**15 - 1)),
    st.tuples(st.just("string"), st.text(PRINTABLE, max_size=12)),
    st.tuples(st.just("token"), word(ALPHA + "*", TOKEN)),
    st.tuples(st.just("bytes"), st.binary(max_size=12)),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("date"), integers),
    st.tuples(st.just("display"), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
)
keys = word("abcz*", KEY)
parameters = st.dictionaries(keys, bares, max_size=3)
items = st.tuples(bares, parameters)
members = st.one_of(items, st.tuples(st.lists(items, max_size=3).map(tuple), parameters))


def meant(kind, value):
    return value / 1000 if kind == "decimal" else value


def parts(parameters, gap):
    """The text and the value of parameters; True may be written by leaving it out."""
    text = "".join(
        f";{gap}{key}" + ("" if bare == ("boolean", True) else f"={written(*bare)}")
        for key, bare in parameters.items()
    )
    return text, {key: meant(*bare) for key, bare in parameters.items()}


def member_parts(member, gap):
    value, parameters = member
    tail, read = parts(parameters, gap)
    if value and isinstance(value[0], str):
        return written(*value) + tail, (meant(*value), read)
    inner = [member_parts(item, gap) for item in value]
    between = gap or " "
    return f"({gap}{between.join(text for text, _ in inner)}{gap}){tail}", (
        tuple(item for _, item in inner),
        read,
    )


@given(
    st.lists(members, max_size=4),
    st.sampled_from(["", " ", "  "]),
    st.sampled_from([",", ", ", "\t,\t", " , "]),
)
def test_written_lists_read_back(members, gap, comma):
    pairs = [member_parts(member, gap) for member in members]
    text = gap + comma.join(text for text, _ in pairs) + gap
    read = parse_list(text)
    assert read == [value for _, value in pairs]
    assert repr(read) == repr([value for _, value in pairs])  # 1, 1.0 and True are three things


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", []),
        ("   ", []),
        ('"default";r=50;t=30', [("default", {"r": 50, "t": 30})]),
        ('"a";r=1, "b";r=2', [("a", {"r": 1}), ("b", {"r": 2})]),
        ('"a";q=100;w=60;pk=:YWJj:', [("a", {"q": 100, "w": 60, "pk": b"abc"})]),
        ("a;x=1;x=2", [("a", {"x": 2})]),
        (":YWI:", [(b"ab", {})]),
        ("::", [(b"", {})]),
        ("1.5", [(1.5, {})]),
        ("a\t,\tb", [("a", {}), ("b", {})]),
        ("\ta", None),
        ("( )", [((), {})]),
    ],
)
def test_lists(text, read):
    assert parse_list(text) == read


@given(
    st.lists(st.tuples(keys, members), max_size=4),
    st.sampled_from(["", " ", "  "]),
    st.sampled_from([",", ", ", "\t,\t", " , "]),
)
def test_written_dictionaries_read_back(entries, gap, comma):
    pairs = [(key, *member_parts(member, gap)) for key, member in entries]
    text = gap + comma.join(f"{key}={text}" for key, text, _ in pairs) + gap
    assert repr(parse_dictionary(text)) == repr({key: value for key, _, value in pairs})


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        ("limit=100, remaining=0", {"limit": (100, {}), "remaining": (0, {})}),
        ("a;x=1, b, a=2;y", {"a": (2, {"y": True}), "b": (True, {})}),
        ("a=(1 2);q", {"a": (((1, {}), (2, {})), {"q": True})}),
        ('"a";r=1', None),
        ("a=1,", None),
        ("a=", None),
        ("a = 1", None),
        ("A=1", None),
        ("a" * LONGEST, {"a" * LONGEST: (True, {})}),
        ("a" * (LONGEST + 1), None),
    ],
    ids=lambda given_value: repr(given_value)[:20],
)
def test_dictionaries(text, read):
    assert parse_dictionary(text) == read


MALFORMED = [
    '"a',
    '"a\\b"',
    '"ü"',
    '"a"r=1',
    "a,",
    ",a",
    "a,,b",
    "a b",
    "a ;x",
    "a;",
    "a;X=1",
    "a;x=",
    "a;1=2",
]
MALFORMED += ["1.", ".1", "1.2345", "1234567890123456", "1234567890123.1", "--1", "1.2.3", "+1", "1e3", "-"]
MALFORMED += [
    ":YQ=b:",
    ":Y:",
    ":YQ==YQ==:",
    ":Y Q:",
    ":YQ",
    "?2",
    "?",
    "?true",
    "@1.5",
    "@",
    "@-",
    "\x00",
    "a\n",
    "a\t",
]
MALFORMED += [
    "(a",
    "(a(b))",
    "((a))",
    '(a"b")',
    "(a,b)",
    "a)",
    "()x",
    '%"%F0"',
    '%"%ff"',
    '%"%',
    '%"ü"',
    "limit=100",
]
MALFORMED += ["(" * 2000, "a" + ";x" * 2000 + "=", '"' * 4001, '"\\' * 2000, ":" * 99]


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: text[:12])
def test_a_malformed_field_is_ignored_as_a_whole(text):
    assert parse_list(text) is None
    assert parse_list(f"ok, {text}") is None


def test_a_list_that_is_too_long_is_ignored():
    assert parse_list("a" * LONGEST) == [("a" * LONGEST, {})]
    assert parse_list("a" * (LONGEST + 1)) is None
    assert parse_list("a" * LONGEST + " ") is None  # perhaps cut there, perhaps not


@given(st.text(st.characters(max_codepoint=0x17F)) | st.text('()";=,: a1.?@%\\*-\t', max_size=40))
def test_any_text_is_read_or_ignored(text):
    assert isinstance(parse_list(text), list | None)
