"""The law: what refusals and successes make of a rate, in any order."""

from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from shapekit.algorithms.queue import adaptive
from shapekit.algorithms.queue.adaptive import FULL, LEAST

SHARES = st.integers(LEAST, FULL)
SECOND = 1_000_000
START = 1_000 * SECOND

OUTCOMES = st.one_of(
    st.tuples(st.just("refused"), st.integers(0, 5 * SECOND), st.integers(0, 3 * SECOND)),
    st.tuples(st.just("succeeded"), st.integers(0, 100), st.integers(0, 5 * SECOND)),
    st.tuples(st.just("stated"), SHARES, st.integers(0, 5 * SECOND)),
)
STORIES = st.lists(st.tuples(st.integers(-SECOND // 2, 4 * SECOND), OUTCOMES), max_size=30)


def law_after(law, now, what, least):
    match what:
        case "refused", age, hold:
            return adaptive.after_refusal(law, now, now - age, now + hold, least)
        case "succeeded", count, age:
            return adaptive.after_success(law, now, count, now - age)
        case "stated", share, age:
            return adaptive.after_statement(law, share, now - age)


def steps(story, least):
    law, now = adaptive.cold_law(least), START
    for move, what in story:
        now += move
        after = law_after(law, now, what, least)
        yield now, what, law, after
        law = after


@given(SHARES, STORIES)
def test_the_rate_lies_between_its_bounds_and_never_above_what_is_stated(least, story):
    newest, cap = 0, FULL
    for now, what, _, after in steps(story, least):
        if what[0] == "stated" and now - what[2] >= newest:
            newest, cap = now - what[2], what[1]
        assert min(least, cap) <= adaptive.present(after) <= cap


@given(SHARES, STORIES)
def test_only_refusals_and_statements_lower_it_and_only_successes_and_statements_raise_it(least, story):
    for _, what, before, after in steps(story, least):
        change = adaptive.present(after) - adaptive.present(before)
        assert what[0] == "stated" or change * {"refused": -1, "succeeded": 1}[what[0]] >= 0


AFTER_A_LATE_REFUSAL = [
    (0, ("succeeded", 1, 0)),
    (0, ("refused", 0, 0)),
    (50_000, ("succeeded", 0, 0)),
    (0, ("refused", 1, 1)),
]
"""A late refusal holds the key, and calls that left before that hold are no new incident."""


@given(SHARES, STORIES, st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=5), st.randoms())
@example(LEAST, AFTER_A_LATE_REFUSAL, [0], Random(0))
def test_an_incident_lowers_once_in_whatever_order_its_refusals_come(least, story, ages, rng):
    """All that left before the lowering took effect, and all that is refused before anything succeeds."""
    law, now = adaptive.cold_law(least), START
    for at, _, _, after in steps(story, least):
        now, law = max(now, at), after
    now = max(now, law[4])
    law = adaptive.after_refusal(law, now, now, now, least)
    for age in ages:
        left = now - age
        law = adaptive.after_refusal(law, now + rng.randrange(SECOND), left, now, least)
    lowered = adaptive.present(law)
    later = max(now, law[4]) + SECOND
    assert adaptive.present(adaptive.after_refusal(law, later, later - 1, later, least)) == lowered
    # A success of a call that left before shows nothing; of one that left since, that this was the rate.
    law = adaptive.after_success(law, later, 1, law[4] - 1)
    assert adaptive.present(adaptive.after_refusal(law, later, later - 1, later, least)) == lowered
    law = adaptive.after_success(law, later, 0, later - 1)
    grown = adaptive.present(law)
    for age in ages:
        law = adaptive.after_refusal(law, later, law[4] - 1 - age, later, least)
        assert adaptive.present(law) == grown
    later = max(later, law[4]) + SECOND
    again = adaptive.present(adaptive.after_refusal(law, later, later - 1, later, least))
    assert again < grown or again in (least, law[7])


@given(SHARES, STORIES, st.integers(0, 10 * SECOND))
def test_late_answers_neither_raise_nor_state(least, story, late):
    for now, _, _, law in steps(story, least):
        old_news = adaptive.after_success(law, now, 5, law[4] - 1 - late)
        assert old_news == law
        assert adaptive.after_statement(law, FULL, law[8] - 1 - late) == law


@given(SHARES, STORIES, st.integers(1, 1_000), st.integers(0, 60 * SECOND))
def test_a_gain_is_bounded_by_calls_and_by_time(least, story, count, span):
    """A success is worth 0.2 s, no time counts twice, and none that goes back."""
    for now, _, _, law in steps(story, least):
        after = adaptive.after_success(law, now + span, count, now + span)
        gain = max(0, after[3] - law[3])
        assert gain <= max(1, min(count * adaptive.WORTH_US, max(0, now + span - law[5]), adaptive.STRIDE_US))
        again = adaptive.after_success(after, now + span, count, now + span)
        assert again == after
        assert adaptive.after_success(after, now - SECOND, count, now + span)[:4] == after[:4]


def test_the_curve_comes_back_to_the_ceiling_and_goes_past_it():
    """As computed by hand: 92 % after a refusal, the ceiling after 20 s, 8 % more after 40 s."""
    law = (FULL // 2, FULL // 2, FULL // 4, 30 * SECOND, 0, START, 1, FULL, 0)
    law = adaptive.after_refusal(law, START, START, START, FULL // 50)
    rates = [adaptive.present(law) / (FULL / 2)]
    for second in range(1, 61):
        law = adaptive.after_success(law, START + second * SECOND, 5, START + second * SECOND)
        rates.append(adaptive.present(law) / (FULL / 2))
    assert [round(rates[at], 3) for at in (0, 5, 10, 20, 30, 39)] == [0.922, 0.967, 0.99, 1.0, 1.01, 1.066]
    assert 1.7 < rates[60] / rates[40] < 2.2
    assert rates == sorted(rates)


def test_incidents_in_a_row_lower_by_more():
    law = (FULL, FULL, FULL, 30 * SECOND, 0, START, 1, FULL, 0)
    shares, now = [], START
    for _ in range(5):
        law = adaptive.after_refusal(law, now, now, now, LEAST)
        shares.append(adaptive.present(law))
        now += SECOND
        law = adaptive.after_success(law, now, 0, now)
    kept = [later / sooner for sooner, later in zip([FULL, *shares], shares, strict=False)]
    assert [round(part, 2) for part in kept] == [0.92, 0.85, 0.75, 0.75, 0.75]


def test_the_law_of_a_rate_that_has_grown_for_long_can_be_read():
    law, now = adaptive.after_refusal(adaptive.cold_law(LEAST), START, START, START, LEAST), START
    for _ in range(10 * 60):
        now += SECOND
        law = adaptive.after_success(law, now, 1_000, now)
    adaptive.inspect_law(law)


def test_calls_that_left_within_50_ms_after_the_cut_belong_to_its_incident():
    """They could not know of the lower rate yet."""
    least, law = FULL // 50, adaptive.cold_law(FULL // 10)
    law = adaptive.after_success(law, START, 10, START - SECOND)
    cut = adaptive.after_refusal(law, START, START - 1, START, least)
    known = adaptive.after_success(cut, START + SECOND, 1, START + 50_000)
    late = adaptive.after_refusal(known, START + SECOND, START + 49_999, START + SECOND, least)
    assert adaptive.present(late) == adaptive.present(known)
    anew = adaptive.after_refusal(known, START + SECOND, START + 50_000, START + SECOND, least)
    assert adaptive.present(anew) < adaptive.present(known)
    assert adaptive.after_success(cut, START + SECOND, 1, START + 49_999) == cut
