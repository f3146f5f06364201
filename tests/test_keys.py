"""Key templates: parsed when declared, and two different sets of values never give one key."""

from enum import Enum
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit.keys import KeyTemplate

NAMES = ("a", "b", "c")
# Characters with a meaning in templates, in escapes, or in both; and one from elsewhere.
SEPARATORS = st.sampled_from([
    ":", "/", "{", "}", "{}", " ", "\n", "-", ".", "\0", "\u2028", "\u0301",
    ":%", "%:", "%25:", "%3A:", ":%None", "N:", ":25", "2:5", "::", "a{b}:",
])  # fmt: skip
TEXTS = st.text(alphabet="%253A:{}N/\né", max_size=4) | st.text(max_size=4)
VALUES = st.none() | TEXTS | st.sampled_from(["None", "%None", "%", "%25", "%3A", "%%", ""])


def template(pieces):
    """`["x", "/", ""]` → the template `x{a}/{b}{c}`."""
    escaped = [piece.replace("{", "{{").replace("}", "}}") for piece in pieces]
    return KeyTemplate("".join(f"{piece}{{{name}}}" for piece, name in zip(escaped, NAMES, strict=False)))


@st.composite
def near(draw, values):
    """Other values, often made from these: characters moved across a border."""
    if draw(st.booleans()):
        return [draw(VALUES) for _ in values]
    joined = "".join(draw(SEPARATORS) if value is None else value for value in values)
    cuts = sorted(draw(st.integers(0, len(joined))) for _ in values[1:])
    return [joined[start:end] for start, end in zip([0, *cuts], [*cuts, len(joined)], strict=True)]


@settings(max_examples=300)
@given(TEXTS, st.lists(SEPARATORS, max_size=2), st.data())
def test_two_different_sets_of_values_never_give_the_same_key(beginning, separators, data):
    key = template([beginning, *separators])
    one = [data.draw(VALUES) for _ in key.fields]
    other = data.draw(near(one))
    keys = [key(dict(zip(key.fields, values, strict=True))) for values in (one, other)]
    assert (keys[0] == keys[1]) is (one == other)


@pytest.mark.parametrize("separator", [":", "%:", ":%", "2:5", "%25:", ":N", "{", "é:", "\n"])
def test_no_two_short_sets_of_values_give_the_same_key(separator):
    key = template(["", separator])
    alphabet = sorted({*separator, "%", "2", "5", "N", "x"})
    texts = ["".join(text) for length in range(4) for text in product(alphabet, repeat=length)]
    texts = [None, "None", "%None", *texts[:120]]
    keys = {key({"a": one, "b": other}) for one, other in product(texts, repeat=2)}
    assert len(keys) == len(texts) ** 2


@given(st.text(min_size=1, max_size=3))
def test_any_separator_keeps_values_apart_or_is_refused(outcome, separator):
    key, error = outcome(lambda: template(["", separator]))
    if error is None:
        texts = [
            None,
            "",
            "%",
            *separator,
            separator,
            separator + separator,
            separator + "%",
            "%25" + separator,
        ]
        keys = {key({"a": one, "b": other}): (one, other) for one, other in product(texts, repeat=2)}
        assert len(keys) == len(set(texts)) ** 2
    else:
        assert error.field == "key"


@pytest.mark.parametrize("separator", ["", "x", "2", "%", "_", "é", "x_2"])
def test_two_fields_with_no_mark_between_them_are_refused(refused, separator):
    assert "between them" in refused(lambda: KeyTemplate(f"{{a}}{separator}{{b}}"), "key").bound


@given(st.text(alphabet="abcé 0.@-"))
def test_a_value_is_kept_as_it_is_unless_it_contains_characters_of_the_template(value):
    assert KeyTemplate("{a}")({"a": value}) == value
    assert KeyTemplate("{a}:{b}")({"a": value, "b": value}) == f"{value}:{value}"


def test_a_template_of_one_field_keeps_the_value_readable():
    assert KeyTemplate("{user}")({"user": "alice@example.org"}) == "alice@example.org"
    assert KeyTemplate("user:{user}")({"user": 7}) == "user:7"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", ""),
        ("default", "default"),
        ("100%", "100%"),
        ("{{x}}", "{x}"),
        ("{{{a}}}", "{1}"),
        ("{{{{{a}}}}}-", "{{1}}-"),
        ("{{{a}:{b}", "{1:2"),
        ("{a}}}{b}", "1}2"),
        ("x{a}y/{b}z", "x1y/2z"),
        ("100%-{a}", "100%-1"),
        ("{a}\n{b}", "1\n2"),
    ],
)
def test_literal_text_and_doubled_braces(text, key):
    assert KeyTemplate(text)({"a": "1", "b": "2"}) == key


def test_dotted_attributes_and_items():
    team = SimpleNamespace(id=7, tags=["x", "y"], limits={"eu": "low", 3: "three"})
    read = KeyTemplate("{user.team.id}/{user.team.tags[1]}/{user.team.limits[eu]}/{user.team.limits[3]}")
    assert read.fields == ("user",)
    assert read({"user": SimpleNamespace(team=team)}) == "7/y/low/three"


def test_a_str_subclass_is_read_by_its_characters():
    class Plan(str, Enum):  # noqa: UP042 - as many still write it
        GOLD = "gold"

    assert KeyTemplate("{plan}")({"plan": Plan.GOLD}) == KeyTemplate("{plan}")({"plan": "gold"}) == "gold"


def test_a_field_may_come_twice():
    key = KeyTemplate("{a}-{b}-{a}")
    assert key.fields == ("a", "b")
    assert key({"a": "1", "b": "2"}) == "1-2-1"


WRONG = [
    "{", "}", "{a", "a}", "{}", "{0}", "{1a}", "{a}{b}", "{a!r}", "{a:5}", "{a:{b}}", "{a.}", "{a..b}",
    "{a[}", "{a[]}", "{a[b c]}", "{a.b()}", "{a b}", "{ a}", "{a-b}", "{[0]}", "{.a}", "{a}{b}-{c}",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_malformed_template_is_refused_when_declared(refused, text):
    refused(lambda: KeyTemplate(text), "key")


def test_the_error_about_an_unknown_field_lists_those_of_the_call(refused):
    error = refused(lambda: KeyTemplate("{usr}", ["self", "user"]), "key")
    assert "'usr'" in error.bound
    assert "self, user" in error.fix
    assert "none" in refused(lambda: KeyTemplate("{usr}", []), "key").fix


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a.b}", object()),
        ("{a[0]}", []),
        ("{a[x]}", {}),
        ("{a[0]}", None),
        ("{a[x]}", "text"),
        ("{a.b.c}", 5),
    ],
)
def test_a_missing_value_is_a_config_error(refused, text, value):
    refused(lambda: KeyTemplate(text)({"a": value}), "key")


class Anything:
    def __getattr__(self, name):
        return self

    def __getitem__(self, item):
        return self


@given(st.text(alphabet="{}ab.[]!:0 %", max_size=12) | st.text(max_size=12))
def test_any_text_is_a_template_or_a_config_error(outcome, text):
    key, error = outcome(lambda: KeyTemplate(text))
    if error is None:
        assert isinstance(key({name: Anything() for name in key.fields}), str)
    else:
        assert error.field == "key"


def test_the_repr_shows_the_template():
    assert repr(KeyTemplate("{a}:{b}")) == "KeyTemplate('{a}:{b}')"


def test_a_template_may_contain_lone_surrogates():
    key = KeyTemplate("\ud800{a}\ud801{b}")
    assert key({"a": "1\ud8012", "b": "3"}) == "\ud8001%ED%A0%812\ud8013"
    assert key({"a": "1", "b": "2\ud8013"}) == "\ud8001\ud8012%ED%A0%813"
