"""Laws of `debit` and `scaled`, for every limit: a debt is repaid by time, a share is never more."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import GCRA, ConfigError, LeakyBucket, Quota, Rate, TokenBucket
from shapekit.algorithms.compose import Composite

from .limits import cold_units, fixed_windows, leaves, limits, logs, meters, scales_us, sliding_windows
from .reference import model_of
from .stories import Event, Story, stories, without_receipt

one_over = st.builds(lambda workers: Fraction(1, workers), st.integers(1, 64))
shares = st.one_of(one_over, st.floats(0.001, 1.0))


@given(stories(leaves, ("check", "debit", "debit"), back=False))
@example(Story(GCRA("3/s"), 0, (Event("debit", 0, 6), Event("debit", 1, 6)), 999_999, 3))
def test_a_debt_weighs_and_fades_as_admitted_units_would(story):
    limit, now, skew = story.limit, story.start, story.skew
    model, state = model_of(limit, skew), None
    for what, step_us, cost in story.events:
        now += step_us
        if what == "debit":
            outcome = limit.debit(state, now, cost, None, skew)
            model.charge(now, cost)
            assert tuple(outcome.decision[:6]) == tuple(model.look(now, 1))
        else:
            outcome = limit.check(state, now, cost, skew)
            assert tuple(outcome.decision[:6]) == tuple(model.check(now, cost))
        state = outcome.state if outcome.persist else state
    now += story.later_us
    assert limit.earliest(state, now, story.cost, skew) == now + model.wait(now, story.cost)


@given(stories(limits))
def test_a_debit_is_the_charge_of_an_admitted_check(story):
    limit, state, now, cost, skew, _ = moment = story.played()
    checked = moment.check()
    if checked.decision.allowed:
        debited = limit.debit(state, now, cost, checked.decision.receipt, skew)
        for scale in scales_us(limit):
            for at in (now, now + scale // 3, now + scale):
                for units in range(1, limit.max_cost + 1):
                    after_debit = limit.check(debited.state, at, units, skew).decision
                    assert without_receipt(after_debit) == without_receipt(
                        limit.check(checked.state, at, units, skew).decision
                    )


@given(stories(limits), st.integers(1, 40))
def test_a_debit_never_frees_anything_and_time_repays_it(story, units):
    limit, state, now, cost, skew, _ = moment = story.played()
    outcome = limit.debit(state, now, units, None, skew)
    assert outcome.persist
    indebted = moment._replace(state=outcome.state)
    for scale in scales_us(limit):
        for at in (now, now + scale // 2, now + scale):
            assert indebted.earliest(at) >= moment.earliest(at)
    assert indebted.peek().remaining >= 0
    repaid_at = indebted.earliest()
    assert indebted.check(repaid_at).decision.allowed
    assert limit.check(outcome.state, now + outcome.ttl_us, cost, skew).decision.allowed


@given(stories(limits))
def test_the_whole_share_decides_as_the_limit_itself(story):
    moment = story.played()
    whole = moment._replace(limit=moment.limit.scaled(1))
    assert whole.check() == moment.check()
    assert whole.earliest() == moment.earliest()


@given(meters(), shares)
@example(GCRA("5000/h"), 0.123457)
@example(GCRA("10/s", burst=1), Fraction(1, 3))
def test_a_share_of_a_meter_is_that_share_of_its_rate(meter, share):
    part = meter.scaled(share)
    exact = Fraction(share).limit_denominator(1_000_000)
    assert type(part) is type(meter)
    assert Fraction(part.rate.limit, part.rate.period_us) == exact * Fraction(
        meter.rate.limit, meter.rate.period_us
    )
    assert part.burst == max(1, int(meter.burst * exact))


@given(st.one_of(fixed_windows(), sliding_windows(), logs()), shares)
def test_a_share_of_a_window_is_at_most_that_share_of_its_rate(window, share):
    part = window.scaled(share)
    exact = Fraction(share).limit_denominator(1_000_000)
    assert type(part) is type(window)
    assert part.limit == max(1, int(window.limit * exact))
    assert Fraction(part.limit, part.window_us) <= exact * Fraction(window.limit, window.window_us)
    assert part.window_us == window.window_us or part.limit == 1


@given(limits, st.integers(1, 12))
def test_workers_with_a_share_each_burst_no_more_than_the_whole(limit, workers):
    """Where a share leaves less than one call, a worker may still make one; of a quota it may not."""
    share = Fraction(1, workers)
    if any(isinstance(leaf, Quota) and leaf.limit < workers for leaf in parts_of(limit)):
        with pytest.raises(ConfigError, match="share"):
            limit.scaled(share)
        return
    for part, whole in zip(parts_of(limit.scaled(share)), parts_of(limit), strict=True):
        assert cold_units(part) == max(1, cold_units(whole) // workers)


def parts_of(limit):
    return (
        [leaf for part in limit.parts for leaf in parts_of(part)] if isinstance(limit, Composite) else [limit]
    )


@pytest.mark.parametrize("kind", [GCRA, TokenBucket, LeakyBucket])
def test_a_debt_beyond_all_counting_is_shown_as_the_largest_exact_number(kind):
    assert kind("1_000_000_000/s").debit(None, 10**15, 2**60).decision.current == 2**53 - 1


@pytest.mark.parametrize("kind", [GCRA, TokenBucket, LeakyBucket])
@given(st.integers(1, 10**6), st.integers(1, 10**9), st.integers(1, 10**4), st.integers(1, 10**6))
def test_a_debt_of_any_size_is_repaid_at_the_rate(kind, limit, period_us, burst, debt):
    limit = min(limit, 1_000 * period_us)
    meter = kind(Rate.of(limit, period_us), burst)
    state = meter.debit(None, 10**15, debt).state
    ready = Fraction((debt + 1 - burst) * period_us, limit)
    assert meter.earliest(state, 10**15, 1) == 10**15 + max(0, -(-ready.numerator // ready.denominator))
