"""Laws of the state of every limit: never mutated, plain, exact in JSON, and kept long enough."""

import json
from copy import deepcopy

from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, any_of

from .limits import fixed_windows, limits, logs, meters, sliding_windows, weighed
from .stories import Event, Story, slot, stories, without_receipt

one_of_a_rate = weighed(meters(), fixed_windows(), sliding_windows(), logs())


def plain(state) -> bool:
    """Whether a state is made of integers and tuples alone."""
    if isinstance(state, tuple):
        return all(plain(part) for part in state)
    return state is None or type(state) is int


def from_json(value):
    """What a store does on reading: lists become tuples again."""
    return tuple(from_json(part) for part in value) if isinstance(value, list) else value


def charged(moment):
    """The outcome of each operation that charges."""
    limit, state, now, cost, skew, _ = moment
    yield limit.check(state, now, cost, skew)
    yield slot(limit, state, now, cost, skew)[1]
    yield limit.debit(state, now, cost, None, skew)


@given(stories(limits))
def test_no_operation_mutates_the_state_it_was_given(story):
    limit, state, now, cost, skew, charges = story.played()
    assert plain(state)
    before = deepcopy(state)
    receipts = [charge.receipt for charge in charges] or [now]
    limit.check(state, now, cost, skew)
    limit.earliest(state, now, cost, skew)
    limit.peek(state, now, skew)
    limit.forecast(state, now, cost, skew)
    limit.debit(state, now, cost, None, skew)
    limit.spent(state, now, cost, skew)
    slot(limit, state, now, cost, skew)
    for receipt in receipts:
        limit.refund(state, now, cost, receipt, skew)
    if state is not None:
        limit.adopt(state, limit, now, skew)
    assert state == before


@given(stories(limits))
def test_every_operation_is_a_function_of_its_arguments(story):
    """Before or after any other question, the answer is the same, also from an equal limit."""
    limit, state, now, cost, skew, _ = story.played()
    answers = [
        (
            limit.check(state, now, cost, skew),
            limit.earliest(state, now, cost, skew),
            limit.peek(state, now, skew),
        )
        for _ in range(2)
    ]
    again = story.played()
    answers.append((again.check(), again.earliest(), again.peek()))
    assert answers[0] == answers[1] == answers[2]


@given(stories(limits))
def test_a_state_round_trips_through_json(story):
    moment = story.played()
    read = from_json(json.loads(json.dumps(moment.state)))
    assert read == moment.state
    assert moment._replace(state=read).check() == moment.check()


@given(stories(limits, back=False), st.integers(0, 10**12))
@example(
    Story(
        any_of(fast=GCRA("10/s", burst=1), slow=FixedWindow(1, "1h")),
        0,
        (Event("check", 0, 1), Event("check", 200_000, 1)),
    ),
    0,
)
def test_a_state_outlives_nothing_when_its_ttl_is_over(story, later_us):
    """What a store may forget after `ttl_us` decides as a cold key does."""
    limit, skew = story.limit, story.skew
    state, now, expires, charges = None, story.start, story.start, []
    for what, step_us, cost in story.events:
        now += step_us
        if what == "refund":
            if not charges:
                continue
            outcome = limit.refund(state, now, cost, charges[-1], skew)
        elif what == "debit":
            outcome = limit.debit(state, now, cost, None, skew)
        else:
            outcome = limit.check(state, now, cost, skew)
        if outcome.persist:
            state, expires = outcome.state, now + outcome.ttl_us
            charges += [outcome.decision.receipt] if what == "check" else []
    at = max(now, expires) + later_us
    for cost in range(1, limit.max_cost + 1):
        cold = limit.check(None, at, cost, skew).decision
        assert without_receipt(limit.check(state, at, cost, skew).decision) == without_receipt(cold)


@given(stories(limits))
def test_a_state_is_kept_not_much_longer_than_it_differs_from_a_cold_one(story):
    """In a store a key may live for twice its state's life and a second."""
    limit, _, now, _, skew, _ = moment = story.played()
    for outcome in charged(moment):
        if outcome.persist:
            assert outcome.ttl_us <= 2 * limit.life(outcome.state, now, skew) + 1_000_000


@given(stories(one_of_a_rate, ("check", "debit", "slot")))
def test_without_refunds_it_is_kept_until_nothing_of_it_is_used(story):
    limit, _, now, _, skew, _ = moment = story.played()
    for outcome in charged(moment):
        if outcome.persist:
            assert now + outcome.ttl_us <= limit.peek(outcome.state, now, skew).reset_at_us


@given(stories(limits, back=False))
def test_a_refund_prolongs_no_life(story):
    limit, state, now, cost, skew, charges = story.played()
    outcome = limit.check(state, now, cost, skew)
    if outcome.persist:
        ends = now + limit.life(outcome.state, now, skew)
        for receipt in [outcome.decision.receipt, *[charge.receipt for charge in charges]]:
            refunded = limit.refund(outcome.state, now, cost, receipt, skew)
            assert now + refunded.ttl_us <= ends


@given(stories(limits))
def test_charges_leave_a_receipt_and_nothing_else_does(story):
    limit, state, now, cost, skew, charges = story.played()
    checked = limit.check(state, now, cost, skew).decision
    assert (checked.receipt is not None) == checked.allowed
    assert slot(limit, state, now, cost, skew)[1].decision.receipt is not None
    assert limit.peek(state, now, skew).receipt is None
    for charge in charges:
        assert limit.refund(state, now, cost, charge.receipt, skew).decision.receipt is None


@given(stories(limits))
@example(Story(FixedWindow("1/s"), 0, ()))
def test_a_debit_leaves_a_receipt_too(story):
    limit, state, now, cost, skew, _ = story.played()
    assert limit.debit(state, now, cost, None, skew).decision.receipt is not None
