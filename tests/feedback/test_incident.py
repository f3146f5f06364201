"""Incidents: a refusal without a named wait holds once, doubling until a call succeeds."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit.feedback import MOST_PLACES, Incidents

PLACE = ("default", None)
LONGEST = 900.0


@pytest.fixture
def incidents():
    return Incidents()


def test_the_hold_doubles_up_to_the_longest(incidents):
    now, steps = 1000.0, []
    for _ in range(12):
        steps.append(incidents.unhinted(PLACE, 1.0, LONGEST, now, now + 0.1))
        now += 0.1 + steps[-1]
    assert steps == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]


def test_a_success_after_the_hold_ends_the_incident(incidents):
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 100.0, 100.0) == 1
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 101.0, 101.0) == 2
    incidents.over(PLACE, sent_at=103.0)
    assert not incidents.known
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 104.0, 104.0) == 1


def test_a_success_of_a_call_sent_before_the_hold_ended_changes_nothing(incidents):
    incidents.unhinted(PLACE, 1.0, LONGEST, 100.0, 100.0)
    incidents.over(PLACE, sent_at=100.999)
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 101.0, 101.0) == 2


def test_refusals_of_calls_sent_before_the_hold_ended_belong_to_it(incidents):
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 99.0, 100.0) == 1
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 98.0, 100.25) == 0.75
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 100.5, 100.75) == 0.25
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 99.0, 130.0) == 0  # very late
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 131.0, 131.0) == 2


def test_a_hinted_hold_covers_refusals_without_a_hint(incidents):
    incidents.hinted(PLACE, 30.0, 100.0)
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 99.9, 101.0) == 29
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 130.0, 130.0) == 1


def test_a_hinted_hold_does_not_forget_the_step(incidents):
    incidents.unhinted(PLACE, 1.0, LONGEST, 100.0, 100.0)
    incidents.hinted(PLACE, 5.0, 100.5)
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 105.5, 105.5) == 2


def test_a_shorter_hint_does_not_shorten(incidents):
    incidents.hinted(PLACE, 30.0, 100.0)
    incidents.hinted(PLACE, 1.0, 101.0)
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 99.0, 101.0) == 29


def test_silence_for_the_longest_hold_forgets(incidents):
    incidents.unhinted(PLACE, 1.0, LONGEST, 100.0, 100.0)
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 101.0 + LONGEST, 101.0 + LONGEST) == 2
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 103.1 + 2 * LONGEST, 103.1 + 2 * LONGEST) == 1


def test_keys_and_scopes_have_separate_incidents(incidents):
    for place in (PLACE, ("other", None), ("default", "search")):
        assert incidents.unhinted(place, 1.0, LONGEST, 100.0, 100.0) == 1
    incidents.over(("other", None), 200.0)
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 101.0, 101.0) == 2


def test_a_clock_that_is_set_back_neither_lengthens_nor_ends_a_hold(incidents):
    incidents.unhinted(PLACE, 1.0, LONGEST, 1e6, 1e6)
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 100.0, 100.0) == 1
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 101.0, 101.0) == 1


def test_a_first_hold_is_bounded_too():
    assert Incidents().unhinted(PLACE, 60.0, 10.0, 0.0, 0.0) == 10


def test_the_memory_is_bounded_and_forgets_the_incident_that_was_quiet_for_longest(incidents):
    for number in range(MOST_PLACES):
        incidents.unhinted((str(number), None), 1.0, LONGEST, 100.0, 100.0)
    incidents.unhinted(("0", None), 1.0, LONGEST, 101.0, 101.0)
    incidents.unhinted(("new", None), 1.0, LONGEST, 101.0, 101.0)
    assert len(incidents.known) == MOST_PLACES
    assert incidents.unhinted(("0", None), 1.0, LONGEST, 103.0, 103.0) == 4
    assert incidents.unhinted(("2", None), 1.0, LONGEST, 101.0, 101.0) == 2
    assert incidents.unhinted(("1", None), 1.0, LONGEST, 101.0, 101.0) == 1


def test_a_copy_in_another_process_has_seen_nothing(incidents):
    incidents.unhinted(PLACE, 1.0, LONGEST, 100.0, 100.0)
    copy = pickle.loads(pickle.dumps(incidents))
    assert not copy.known


times = st.floats(0, 5_000, allow_nan=False)
stories = st.lists(
    st.tuples(st.sampled_from(["refused", "told", "success"]), times, times, st.floats(0.001, LONGEST)),
    max_size=40,
)


@given(stories)
def test_laws_for_answers_in_any_order(story):
    """Holds are bounded in any order of events; answers to calls sent before the end never move it."""
    incidents, until = Incidents(), float("-inf")
    for what, sent_at, took, hold_s in story:
        received_at = sent_at + took
        if what == "told":
            incidents.hinted(PLACE, hold_s, received_at)
            until = max(until, received_at + hold_s)
        elif what == "success":
            incidents.over(PLACE, sent_at)
            if sent_at >= until:
                until = float("-inf")
        else:
            given_s = incidents.unhinted(PLACE, 1.0, LONGEST, sent_at, received_at)
            assert 0 <= given_s <= LONGEST
            if sent_at < until:
                assert received_at + given_s <= max(until, received_at) + 1e-6
            else:
                assert given_s >= 1
                until = received_at + given_s


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 60)), min_size=1, max_size=30), st.randoms())
def test_one_incident_is_one_step_in_any_order_of_its_answers(answers, random):
    """Requests that left before the first refusal came, answered in any order and at any time."""
    incidents = Incidents()
    first = 10.0
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 9.0, first) == 1
    random.shuffle(answers)
    ends = [
        at + incidents.unhinted(PLACE, 1.0, LONGEST, sent, at)
        for sent, late in answers
        for at in [first + late]
    ]
    assert all(
        end <= max(first + 1, first + late) + 1e-6 for end, (_, late) in zip(ends, answers, strict=True)
    )
    assert incidents.unhinted(PLACE, 1.0, LONGEST, 80.0, 80.0) == 2
