"""Laws of `forecast`, for every limit: it promises what `check` then does."""

from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import FixedWindow, Quota
from shapekit.algorithms.compose import AllOf, AnyOf, Composite

from .limits import leaves, limits
from .stories import Event, Story, stories, without_receipt

monotone = stories(limits, ("check", "check", "debit", "refund"), back=False)


@given(stories(limits))
def test_as_many_calls_as_fit_now_are_admitted_now(story):
    limit, state, now, cost, skew, _ = moment = story.played()
    fits = 0
    while (outcome := limit.check(state, now, cost, skew)).decision.allowed:
        state, fits = outcome.state, fits + 1
    assert moment.forecast().fits_now == fits


@given(stories(limits))
def test_a_call_is_admitted_at_the_instant_of_the_forecast(story):
    moment = story.played()
    admits_at = moment.forecast().admits_at_us
    assert moment.check(admits_at).decision.allowed
    assert admits_at == moment.now or not moment.check(admits_at - 1).decision.allowed


@given(stories(limits), st.integers(0, 10**12))
def test_at_full_the_key_is_like_a_cold_one(story, later_us):
    moment = story.played()
    limit, state, skew = moment.limit, moment.state, moment.skew
    full_at = moment.forecast().full_at_us
    assert full_at >= moment.now
    for at in (full_at, full_at + later_us):
        for cost in range(1, limit.max_cost + 1):
            cold = limit.check(None, at, cost, skew).decision
            assert without_receipt(limit.check(state, at, cost, skew).decision) == without_receipt(cold)


@given(stories(leaves, ("check",), back=False))
def test_a_microsecond_before_full_something_is_in_use(story):
    moment = story.played()
    full_at = moment.forecast().full_at_us
    if full_at > moment.now:
        assert moment.peek(full_at - 1).current > 0
    assert moment.peek(full_at).current == 0


@given(stories(limits))
def test_forecast_and_decision_agree_on_when_a_leaf_is_free(story):
    moment = story.played()
    if not isinstance(moment.limit, Composite):
        assert moment.forecast().full_at_us == moment.peek().reset_at_us


def leaves_of(limit):
    return (
        [leaf for part in limit.parts for leaf in leaves_of(part)]
        if isinstance(limit, Composite)
        else [limit]
    )


def has_a_burst_below_its_largest_cost(limit) -> bool:
    """A spread quota admits one call at a time, whatever that costs: the next one waits for it."""
    return any(isinstance(leaf, Quota) and leaf.spread for leaf in leaves_of(limit))


def knows_all_that_remains(limit) -> bool:
    """Whether the binding part of a decision knows what the whole still admits: not among alternatives."""
    if isinstance(limit, Composite):
        return isinstance(limit, (AllOf, AnyOf)) and all(knows_all_that_remains(part) for part in limit.parts)
    return True


@given(monotone)
def test_remaining_is_what_would_still_be_admitted(story):
    moment = story.played()
    limit, remaining = moment.limit, moment.peek().remaining
    if not knows_all_that_remains(limit):
        return
    assert remaining == moment.forecast(1).fits_now
    if 0 < remaining <= limit.max_cost:
        assert moment.check(cost=remaining).decision.allowed
    if remaining < limit.max_cost and not has_a_burst_below_its_largest_cost(limit):
        assert not moment.check(cost=remaining + 1).decision.allowed


@given(stories(leaves))
@example(Story(FixedWindow("2/s"), 10**12, (Event("check", 0, 1),), -1))
def test_nothing_remains_of_a_leaf_that_denies_a_single_unit(story):
    """Also where time went back: `remaining` is what would still be admitted now."""
    peeked = story.played().peek()
    assert (peeked.remaining == 0) == (not peeked.allowed)
