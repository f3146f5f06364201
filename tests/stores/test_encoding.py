"""Descriptions: every program survives as text, and nothing but a description is believed."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import GCRA, Algorithm, ConfigError, Quota, Rate, Shaper, TokenBucket, all_of, first_of
from shapekit.algorithms.queue.queue import LeakyQueue
from shapekit.stores.encoding import describe, packed, revived, tag, unpacked
from tests.algorithms.limits import limits

from .timelines import queues

programs = st.one_of(limits, queues)


@given(programs)
@example(GCRA(Rate.of(10**12, 2**51), 1))
@example(Shaper("3/s burst 7", headroom=0.3).core.queue)
@example(Shaper("3/s", burst=7, headroom=1 / 3).core.queue)
@example(Shaper("3/s; 9/min burst 4", pace="burst").core.queue)
@example(
    Shaper(
        gates=(first_of(a=GCRA("1/s"), b=all_of(c=Quota("5/month", anchor_day=31), d=GCRA("2/s"))),)
    ).core.queue
)
def test_a_program_survives(program):
    text = describe(program)
    again = revived(text)
    assert again == program
    assert type(again) is type(program)
    assert describe(again) == text
    for slot in type(program).__slots__:
        if slot not in ("counter", "_newest", "_steps"):
            assert getattr(again, slot) == getattr(program, slot)


@given(programs, programs)
def test_programs_with_one_text_are_one_program(one, other):
    assert (describe(one) == describe(other)) == (one == other and type(one) is type(other))


def test_each_field_of_a_quota_is_in_its_description():
    quotas = [
        Quota(5, "week"),
        Quota(6, "week"),
        Quota(5, "month"),
        Quota(5, "week", offset_minutes=-1),
        Quota(5, "week", tz="Europe/Berlin"),
        Quota(5, "week", week_start="sunday"),
        Quota(5, "month", anchor_day=2),
    ]
    texts = [describe(quota) for quota in quotas]
    assert len(set(texts)) == len(quotas)
    assert [revived(text) for text in texts] == quotas


def test_the_text_is_frozen():
    # Files and servers hold these texts: another form would be another program to them.
    both = all_of(second=TokenBucket("10/s", 3), month=Quota("1000/month", tz="Europe/Berlin"))
    assert describe(both) == (
        '["all_of",["second","month"],[["token_bucket",[10,1000000],3],'
        '["quota",1000,"month",0,"Europe/Berlin","monday",1]]]'
    )
    queue = LeakyQueue([Rate.of(10, 10**6), Rate.of(5, 10**9, 2)], None, "smooth", [GCRA("1/s")], 0.02)
    assert describe(queue) == (
        '["leaky_queue",[[10,1000000],[5,1000000000,2]],1,"smooth",[["gcra",[1,1000000],1]],[1,50]]'
    )
    assert tag(describe(both)) == 1647784277
    assert tag(describe(queue)) == 3905558314


@given(programs, programs)
def test_different_programs_have_different_tags(one, other):
    assert (tag(describe(one)) == tag(describe(other))) == (describe(one) == describe(other))
    assert 128 <= tag(describe(one)) < 2**32


plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(["gcra", "quota", "smooth", "x"]),
    ),
    lambda parts: st.one_of(
        st.lists(parts, max_size=5), st.dictionaries(st.text(max_size=3), parts, max_size=2)
    ),
    max_leaves=12,
)


@given(st.one_of(st.text(), plain.map(json.dumps)))
@example("[" * 100_000)
@example('["fixed_window",1,1e400]')
@example('["gcra",[1,1],NaN]')
@example('["leaky_queue",[[1,1]],1,"smooth",[],[0,0]]')
@example('["leaky_queue",[[1,1]],1,"smooth",[["leaky_queue",[[1,1]],1,"smooth",[],[0,1]]],[0,1]]')
@example('["all_of",["a","a"],[["gcra",[1,1],1],["gcra",[1,1],1]]]')
@example('["quota",1,"day",0,"../../etc/passwd","monday",1]')
@example('["sliding_window",3,1000000]')
@example("1" * 5_000)
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError):
        revived(text)


@given(programs, st.data())
def test_a_changed_description_is_read_as_written_or_refused(program, data):
    text = describe(program)
    at = data.draw(st.integers(0, len(text) - 1))
    changed = (
        text[:at] + data.draw(st.sampled_from(["", "0", "7", " ", ",1", "]", "e", "-"])) + text[at + 1 :]
    )
    try:
        other = revived(changed)
    except ConfigError:
        return
    assert describe(other) == changed


@pytest.mark.parametrize("text", [None, 3, b'["gcra",[10,1000000],2]', ["gcra", [10, 1000000], 2]])
def test_a_description_that_is_no_text_is_refused(text):
    with pytest.raises(ConfigError, match="describe"):
        revived(text)


def test_a_strategy_from_outside_shapekit_has_no_description():
    class Mine(GCRA):
        __slots__ = ()

    for stranger in (Mine("1/s"), all_of(a=Mine("1/s"), b=GCRA("1/s")), Algorithm, None, "gcra", Decimal(1)):
        with pytest.raises(ConfigError, match="has no description"):
            describe(stranger)
    assert isinstance(revived(describe(GCRA("1/s"))), GCRA)


states = st.recursive(
    st.one_of(st.none(), st.integers(), st.integers(-(2**90), 2**90)),
    lambda parts: st.lists(parts).map(tuple),
)


@given(states)
@example(2**78)
@example(())
@example(((), (None,), ((2**78, -1), 0)))
def test_a_state_survives(state):
    if isinstance(state, int):
        state = (state,)
    assert unpacked(packed(state)) == state


@pytest.mark.parametrize(
    "text", ["", "1", "[1.0]", "[true]", '["1"]', "{}", "[{}]", "[1", "[NaN]", "nul", "[[1.5]]"]
)
def test_a_value_that_is_no_state_is_refused(text):
    with pytest.raises(ValueError, match=r"state|Expecting|Unterminated"):
        unpacked(text)


@pytest.mark.parametrize("text", ["[1]x", "[1] ", " [1]", "[1][2]"])
def test_a_text_with_anything_beside_a_state_is_refused(text):
    with pytest.raises(ValueError, match=r"state|Expecting"):
        unpacked(text)


def test_headroom_is_exact():
    assert revived(describe(Shaper("10/s", headroom=0.1).core.queue)).headroom == Fraction(1, 10)
