"""Keys: any text is one, no two are confused, and a template is right or refused where it is declared."""

from __future__ import annotations

from string import Formatter
from types import SimpleNamespace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from shapekit import ConfigError, Gate, ManualClock, Shaper
from shapekit.algorithms.gcra import GCRA
from shapekit.keys import KeyTemplate
from shapekit.stores.redis.protocol import LONGEST, Keyspace, bounded

from .near import SPLINTERS, VALUES, anything, values
from .test_rates import check_complete

TEMPLATES = ("{user}", "{account.region}:{path[0]}", "api/{a}/{b}", "{{literal}}:{a}", "{a[key].b}", "plain")
MARKS = ":/-|;,. {}[]"
keys = st.one_of(st.text(max_size=20), st.sampled_from(SPLINTERS), st.text(":{}%#a\0\ud800", max_size=12))
parts = st.text("abc_123", min_size=1, max_size=6)


@given(anything(TEMPLATES), st.sampled_from(VALUES) | st.text(max_size=5))
def test_a_template_or_a_config_error(text: str, value: object) -> None:
    try:
        template = KeyTemplate(text)
    except ConfigError as error:
        check_complete(error)
        return
    try:
        key = template(dict.fromkeys(template.fields, value))
    except ConfigError as error:
        assert "of this call" in str(error), "a step that this value does not have"
        check_complete(error)
    else:
        assert isinstance(key, str)


@st.composite
def filled(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A template of a few fields with marks between them, and two sets of values."""
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    marks = [draw(st.sampled_from(MARKS)) + draw(st.text("x:%/", max_size=2)) for _ in names]
    literal = [mark.replace("{", "{{").replace("}", "}}") for mark in marks]
    text = "".join(f"{mark}{{{name}}}" for mark, name in zip(literal, names, strict=True))
    words = st.one_of(st.text(max_size=4), st.text(MARKS + "x%25", max_size=6), st.none(), st.integers(0, 12))
    return text, *({name: draw(words) for name in names} for _ in range(2))


@given(filled())
def test_two_sets_of_values_never_give_one_key(example: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    text, one, other = example
    template = KeyTemplate(text)
    # What is written alike is alike: the number 1 and the text "1".
    alike = all(
        (one[name] is None) == (other[name] is None) and str(one[name]) == str(other[name]) for name in one
    )
    assert (template(one) == template(other)) == alike


def test_a_template_reads_and_calls_nothing() -> None:
    touched = []

    class Wary:
        def __call__(self) -> None:
            touched.append("called")

    for text in ("{a()}", "{a.b()}", "{a!r}", "{a:>10}", "{a.__class__.__globals__[os]}", "{0}", "{}"):
        try:
            KeyTemplate(text)({"a": SimpleNamespace(b=Wary())})
        except ConfigError:
            continue
        raise AssertionError(f"{text} was taken")
    assert not touched
    assert list(Formatter().parse("{a()}")), "which a formatter would have read"


@given(st.text(min_size=1, max_size=5), keys, keys, parts)
def test_keys_in_redis_differ_and_are_read_back_as_they_were(
    name: str, key: str, other: str, part: str
) -> None:
    space = Keyspace("shapekit")
    place = space.of_name(name) + bounded(key) + b"}"
    apart = space.of_part(name, part, key)
    seen = bounded(key).decode("utf-8", "surrogatepass")
    assert space.place(place) == (name, "", seen)
    assert space.place(apart) == (name, part, seen)
    assert (seen == key) == (len(key.encode("utf-8", "surrogatepass")) <= LONGEST)
    assert place != apart
    assert (place == space.of_name(name) + bounded(other) + b"}") == (key == other)
    # Redis Cluster hashes what is between the first brace and the next closing one.
    assert place.index(b"{") == len("shapekit:")
    assert apart[apart.index(b"{") + 1 : apart.index(b"}")] == space.of_name(name)[10:-1]


@given(st.text(min_size=60, max_size=200), st.text(max_size=5), st.integers(2, 8))
def test_keys_in_redis_of_long_texts_are_bounded_and_differ(text: str, end: str, times: int) -> None:
    key, other = text * times, text * times + end
    assume(key != other)
    assert bounded(key) != bounded(other)
    assert len(bounded(key)) <= LONGEST + 8
    bounded(key).decode("utf-8", "surrogatepass")


@given(st.binary(max_size=40))
def test_any_bytes_can_be_shown(data: bytes) -> None:
    space = Keyspace("shapekit")
    for key in (data, b"shapekit:{" + data, b"shapekit:{a:" + data + b"}", b"shapekit:{a}:b:" + data):
        assert isinstance(space.shown(key), str)


@given(values)
def test_a_string_is_accepted_as_a_key_and_anything_else_is_a_config_error(value: Any) -> None:
    gate = Gate(GCRA("10/s"), clock=ManualClock())
    shaper = Shaper("10/s", clock=ManualClock())
    for use in (gate.check, gate.peek, shaper.reserve, shaper.reset, lambda key: shaper.forecast(key=key)):
        try:
            use(value)
        except ConfigError as error:
            assert error.field == "key"
            assert not isinstance(value, str)
        else:
            assert isinstance(value, str)
