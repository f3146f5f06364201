"""Quotas that are spread: evenly over what is left, from whatever instant one looks."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, Policy, Quota

from ..limits import DAY_US, SECOND_US, spread_calendar_quotas, spread_quotas
from ..stories import Event, Story, costs, slot, starts, stories, without_receipt

spreads = st.one_of(spread_quotas(), spread_calendar_quotas)


def end_of_period(quota, at, skew=0):
    return quota.check(None, at, 1, skew).decision.reset_at_us


def assert_on_the_line(charges, quota, skew):
    """From each charge on, every later call has waited for its part of what was left."""
    used = {}
    seen = []
    for at, cost in charges:
        end = end_of_period(quota, at, skew)
        for since, line_end, left, used_before in seen:
            if line_end == end:
                taken = used[end] - used_before
                assert (at - since) * left >= taken * (end - since), f"{at} is too early after {since}"
        before = used.get(end, 0)
        seen.append((at, end, quota.limit - before, before))
        used[end] = before + cost


@given(stories(spreads, ("check",), most_events=30))
@example(Story(Quota(12, "fixed:15us", spread=True), 0, tuple(Event("check", 1, 1) for _ in range(15))))
def test_no_call_is_more_than_one_ahead_of_the_straight_line(story):
    quota, skew = story.limit, story.skew
    state, now, charges = None, story.start, []
    for _, step_us, cost in story.events:
        now = max(0, now + step_us)
        outcome = quota.check(state, now, cost, skew)
        if outcome.persist:
            state = outcome.state
            charges.append((now, cost))
    assert_on_the_line(charges, quota, skew)


@given(stories(spreads, ("check", "refund"), back=False))
def test_with_enough_demand_what_is_left_lasts_until_the_end_and_no_longer(story):
    quota, state, now, _, skew, _ = moment = story.played()
    end = end_of_period(quota, now, skew)
    left = quota.limit - moment.peek().current
    first = max(now, moment.earliest(cost=1))
    assume(left and first + left <= end)
    gaps, at = [], first
    for number in range(left):
        due, outcome = slot(quota, state, now, 1, skew)
        assert not quota.spent(state, now, 1, skew)
        gaps += [due - at] if number else []
        state, at = outcome.state, due
    assert at < end
    assert quota.spent(state, now, 1, skew)
    assert quota.earliest(state, now, 1, skew) == end
    whole, rest = divmod(end - first, left)
    assert set(gaps) <= {whole, whole + 1} if rest else set(gaps) <= {whole}
    assert end - at in (whole, whole + 1)


@given(stories(spreads, ("check",), back=False, most_events=20), st.data())
def test_units_that_come_back_spread_as_if_they_had_never_been_charged(story, data):
    """Exactly, where others came after them; the newest call may be given back itself."""
    quota, state, now, _, skew, charges = story.played()
    assume(charges)
    which = data.draw(st.integers(0, len(charges) - 1))
    back = charges[which]
    state = quota.refund(state, now, back.cost, back.receipt, skew).state
    without = None
    for number, charge in enumerate(charges):
        if number != which:
            without = quota.debit(without, charge.at, charge.cost, None, skew).state
    end = end_of_period(quota, now, skew)
    for at in (now, now + (end - now) // 3, end):
        for cost in range(1, quota.limit + 1):
            mine, never = quota.check(state, at, cost, skew), quota.check(without, at, cost, skew)
            assert without_receipt(mine.decision) == without_receipt(never.decision)


@given(st.integers(2, 2_000), st.integers(1, 2_000), st.integers(0, 1_999))
def test_a_call_cancelled_behind_one_that_cost_less_leaves_the_pace_of_that_one(limit, estimate, actual):
    """The receipt of the one behind contains the estimate, which does not come back with it."""
    quota = Quota(limit, "fixed:10s", spread=True)
    estimate = min(estimate, limit - 1)
    actual = min(actual, estimate)
    first = quota.check(None, 0, estimate)
    due, behind = slot(quota, first.state, 0, 1)
    assume(due < 10 * SECOND_US)
    state = quota.refund(behind.state, 1, estimate - actual, first.decision.receipt).state
    state = quota.refund(state, 1, 1, behind.decision.receipt).state
    never = quota.check(None, 0, actual).state if actual else None
    assert quota.earliest(state, 1, 1) == quota.earliest(never, 1, 1)


@given(spreads, starts, st.data())
def test_slots_cancelled_from_the_tail_leave_nothing(quota, now, data):
    states, receipts = [quota.check(None, now, 1).state], []
    for cost in data.draw(st.lists(costs(quota), min_size=1, max_size=5)):
        _, outcome = slot(quota, states[-1], now, cost)
        states.append(outcome.state)
        receipts.append((cost, outcome.decision.receipt))
    state = states.pop()
    for cost, receipt in reversed(receipts):
        state = quota.refund(state, now, cost, receipt).state
        assert state == states.pop()


def plain(quota):
    """The same quota, not spread."""
    where = {field: getattr(quota, field) for field in quota.fields[2:-1]}
    return Quota(quota.limit, quota.per, **where)


@given(stories(spreads, ("check",), back=False), st.integers(1, 12))
def test_a_changed_limit_spreads_what_it_leaves_from_the_last_call_on(story, limit):
    old, state, now, _, skew, charges = story.played()
    where = {field: getattr(old, field) for field in old.fields[2:]}
    new = Quota(limit, old.per, **where)
    end = end_of_period(old, now, skew)
    charges = [charge for charge in charges if end_of_period(old, charge.at, skew) == end]
    assume(charges)
    used, last = sum(charge.cost for charge in charges), charges[-1]
    kept = new.adopt(state, old, now, skew)
    assert new.peek(kept, now, skew).current == used
    left = limit - used + last.cost
    ready = end if used >= limit else last.at - (-last.cost * (end - last.at) // left)
    assert new.earliest(kept, now, 1, skew) == max(now, ready)


@given(stories(spreads, ("check", "slot"), back=False), spreads)
def test_another_cadence_counts_what_a_plain_quota_would_and_is_paced(story, new):
    old, state, now, _, skew, _ = story.played()
    assume(state and old.counter.periods != new.counter.periods)
    counted = plain(new).adopt(state[0], plain(old), now, skew)
    kept = new.adopt(state, old, now, skew)
    assert kept[0] == counted
    assert new.earliest(kept, now, 1, skew) >= plain(new).earliest(counted, now, 1, skew)
    newest = max(due for due in state[1][1::3])
    assert set(kept[1][1::3]) <= {newest}
    assert kept[1][::3] == counted[::3]


@given(stories(spreads, ("check",), back=False))
def test_spreading_may_be_switched_off_and_on(story):
    quota, state, now, _, skew, _ = story.played()
    assume(state)
    off = plain(quota).adopt(state, quota, now, skew)
    assert plain(quota).peek(off, now, skew).current == quota.peek(state, now, skew).current
    on = quota.adopt(off, plain(quota), now, skew)
    assert quota.peek(on, now, skew).current == quota.peek(state, now, skew).current
    assert quota.earliest(on, now, 1, skew) == plain(quota).earliest(off, now, 1, skew)


def test_a_date_set_forward_over_slots_to_come_begins_a_new_period():
    quota = Quota(4, "fixed:100us", spread=True)
    state = None
    for due in (40, 55, 70):
        taken_at, (state, *_) = slot(quota, state, 40, 1)
        assert taken_at == due
    assert quota.earliest(state, 45, 1, 40) == 60
    assert quota.check(state, 60, 1, 40).decision.allowed


def test_a_date_set_back_over_and_over_is_forgotten_with_its_pace():
    quota = Quota(3, "fixed:100us", spread=True)
    state = quota.check(None, 10, 1).state
    state = quota.check(state, 190, 1, -100).state
    assert quota.earliest(state, 195, 1, -150) == 200
    assert quota.check(state, 200, 1, -150).decision.allowed


def test_a_pace_is_forgotten_with_its_period():
    quota = Quota(3, "fixed:100us", spread=True)
    state = None
    for period in range(50):
        state = quota.check(state, 100 * period, 1).state
        book, paces = state
        assert set(paces[::3]) <= set(book[::3])


def test_where_waiting_calls_are_let_go_their_cost_stays_used_and_the_pace_begins_anew():
    quota = Quota("10/fixed:1000s", spread=True)
    state = quota.check(None, 5_000_000_000, 4).state
    used = quota.check(quota.brought(state, 5_000_000_000), 5_500_000_000, 1)
    assert used.decision.current == 5
    assert used.state[1] == (5_000_000_000, 5_500_000_000, 1)


def test_debts_beyond_the_budget_last_until_the_end_of_the_period():
    quota = Quota(10, "fixed:100us", spread=True)
    state, receipts = None, []
    for units in (10, 10, 3, 40):
        outcome = quota.debit(state, 20, units)
        state = outcome.state
        receipts.append((units, outcome.decision.receipt))
        assert quota.earliest(state, 20, 1) == 100
    for units, receipt in reversed(receipts[1:]):
        state = quota.refund(state, 30, units, receipt).state
    assert quota.peek(state, 30).current == 10
    state = quota.refund(state, 30, 4, receipts[0][1]).state
    assert quota.earliest(state, 30, 1) == 20 + 6 * 80 // 10


MONTH_US = 31 * DAY_US


@pytest.mark.parametrize("seed", range(3))
def test_a_month_of_random_arrivals_is_spent_evenly_over_what_is_left(seed):
    """In virtual time: stretches of demand and of idling, and demand without a pause at the end."""
    random, clock = Random(seed), ManualClock(autojump=True)
    limit = 2_000
    policy = Policy(quota=f"{limit}/month", spread=True, clock=clock)
    departures = []
    while True:
        idle = clock.now_us() < 0.9 * MONTH_US and random.random() < 0.1
        if idle:
            clock.advance(random.expovariate(1 / (0.4 * 86_400)))
        with policy.admit():
            departures.append(clock.now_us())
        if len(departures) == limit:
            break
    assert departures[-1] < MONTH_US
    gaps = [later - earlier for earlier, later in pairwise(departures)]
    assert MONTH_US - departures[-1] <= 2 * gaps[-1]
    assert max(gaps) > 20 * min(gaps)
    for anchor in random.sample(range(limit), 60):
        since, left = departures[anchor], limit - anchor
        for taken, at in enumerate(departures[anchor:]):
            assert (at - since) * left >= taken * (MONTH_US - since)
    assert policy.quotas()[0].remaining == 0
    assert policy.forecast().first_in == pytest.approx((MONTH_US - clock.now_us()) / SECOND_US)


@settings(max_examples=20)
@given(st.integers(1, 10**12), st.integers(1, 10**12), st.integers(1, 2**50), st.integers(0, 10**15))
@example(10**12, 10**12 - 1, 2**50, 10**15)
def test_a_budget_of_any_size_is_divided_exactly(limit, cost, span_us, now):
    quota = Quota(limit, f"fixed:{span_us}us", spread=True)
    cost = min(cost, limit)
    state = quota.check(None, now, cost).state
    end = now - now % span_us + span_us
    ready = end if cost == limit else now - (-cost * (end - now) // limit)
    assert quota.earliest(state, now, 1) == ready


def test_nothing_remains_of_a_spent_budget_that_was_not_spread_before():
    plain, spread = Quota(3, "fixed:10s"), Quota(3, "fixed:10s", spread=True)
    book = plain.check(None, SECOND_US, 3).state
    adopted = spread.adopt(book, plain, 2 * SECOND_US)
    assert spread.peek(adopted, 2 * SECOND_US).remaining == 0
    assert spread.forecast(adopted, 2 * SECOND_US, 1).admits_at_us == 10 * SECOND_US
