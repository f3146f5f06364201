"""Laws of `refund`: never more permissive than if the refunded units had never been charged.

Each test keeps two states of one key: the one that was charged and refunded, and the counterfactual,
which saw the same charges at the same instants without those units. The refunded one must never
admit sooner.
"""

from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, SlidingWindow, SlidingWindowLog, first_of
from shapekit.algorithms.compose import Composite

from .limits import (
    DAY_US,
    calendar_quotas,
    composites,
    fixed_windows,
    leaves,
    limits,
    logs,
    meters,
    scales_us,
    sliding_windows,
    span_quotas,
    whole_meters,
)
from .stories import Event, Story, costs, slot, starts, steps, stories, without_receipt

MOST_STRETCHES = 62


class Paid(NamedTuple):
    """A charge and how many of its units were given back."""

    at: int
    cost: int
    receipt: Any
    back: int = 0


class Ledger:
    """A key that is charged and refunded, with all that was charged."""

    def __init__(self, limit, skew: int = 0) -> None:
        self.limit, self.skew = limit, skew
        self.state: Any = None
        self.paid: list[Paid] = []

    def check(self, now: int, cost: int) -> bool:
        outcome = self.limit.check(self.state, now, cost, self.skew)
        if outcome.persist:
            self.state = outcome.state
            self.paid.append(Paid(now, cost, outcome.decision.receipt))
        return outcome.persist

    def slot(self, now: int, cost: int) -> None:
        due, outcome = slot(self.limit, self.state, now, cost, self.skew)
        self.state = outcome.state
        self.paid.append(Paid(due, cost, outcome.decision.receipt))

    def refund(self, now: int, which: int, units: int, receipt: Any = None) -> None:
        charge = self.paid[which]
        receipt = charge.receipt if receipt is None else receipt
        outcome = self.limit.refund(self.state, now, units, receipt, self.skew)
        if outcome.persist:
            self.state = outcome.state
        self.paid[which] = charge._replace(back=charge.back + units)

    def counterfactual(self) -> Any:
        state = None
        for at, cost, receipt, back in self.paid:
            if cost > back:
                state = self.limit.debit(state, at, cost - back, receipt, self.skew).state
        return state

    def assert_nothing_was_minted(self, now: int) -> None:
        instants = {
            now + scale * eighths // 8 + beside
            for scale in scales_us(self.limit)
            for eighths in range(13)
            for beside in (0, 1)
        }
        pairs = zip(
            standing(self.limit, self.state), standing(self.limit, self.counterfactual()), strict=True
        )
        for (limit, refunded), (_, without) in pairs:
            for at in sorted(instants):
                for cost in {1, 2, limit.max_cost} & set(range(1, limit.max_cost + 1)):
                    mine = limit.earliest(refunded, at, cost, self.skew)
                    theirs = limit.earliest(without, at, cost, self.skew)
                    assert mine >= theirs, f"{limit}, cost {cost} at {at}: {mine}, never charged {theirs}"


def standing(limit, state) -> list[tuple[Any, Any]]:
    """A limit without parts and its state; of a composite, each of its parts, which must all hold."""
    if not isinstance(limit, Composite):
        return [(limit, state)]
    states = state or (None,) * len(limit.parts)
    return [leaf for part, own in zip(limit.parts, states, strict=True) for leaf in standing(part, own)]


class Plan(NamedTuple):
    """Calls as (step, cost), and refunds as (after which call, step, of which call, share of its units)."""

    limit: Any
    start: int
    calls: tuple[tuple[int, int], ...]
    refunds: tuple[tuple[int, int, int, float], ...]
    skew: int = 0

    def carried_out(self, slots: bool = False) -> tuple[Ledger, int]:
        ledger, now = Ledger(self.limit, self.skew), self.start
        for number, (step, cost) in enumerate(self.calls):
            now = max(0, now + step)
            if slots:
                ledger.slot(now, cost)
            else:
                ledger.check(now, cost)
            for after, later, of, share in self.refunds:
                if after == number and ledger.paid:
                    now = max(0, now + later)
                    which = of % len(ledger.paid)
                    charge = ledger.paid[which]
                    units = min(charge.cost - charge.back, max(1, round(charge.cost * share)))
                    if units:
                        ledger.refund(now, which, units)
        return ledger, now


@st.composite
def plans(draw, limits, *, most_refunds: int = 6, back: bool = False) -> Plan:
    """Waves of calls at one instant, after each of which a few of all the calls so far are refunded."""
    limit = draw(limits)
    calls: list[tuple[int, int]] = []
    refunds: list[tuple[int, int, int, float]] = []
    for _ in range(draw(st.integers(1, 4))):
        step = draw(steps(limit, back))
        for cost in draw(st.lists(costs(limit), min_size=1, max_size=4)):
            calls.append((step, cost))
            step = 0
        later = draw(steps(limit, back))
        for of in draw(st.lists(st.integers(0, len(calls) - 1), max_size=2)):
            refunds.append((len(calls) - 1, later, of, draw(st.sampled_from([0.3, 0.5, 1.0, 1.0]))))
            later = 0
    skew = draw(st.sampled_from([0, DAY_US // 3]))
    return Plan(limit, draw(starts), tuple(calls), tuple(refunds[-most_refunds:]), skew)


TEN = GCRA("10/s", burst=10)


@given(plans(limits, most_refunds=1))
def test_one_refund_mints_nothing(plan):
    ledger, now = plan.carried_out()
    ledger.assert_nothing_was_minted(now)


@settings(max_examples=200)
@given(plans(st.one_of(meters(), limits)))
@example(Plan(TEN, 0, ((0, 3), (0, 3), (300_000, 3)), ((1, 0, 0, 1.0), (2, 0, 1, 1.0))))
def test_refunds_of_several_calls_mint_nothing(plan):
    ledger, now = plan.carried_out()
    ledger.assert_nothing_was_minted(now)


@settings(max_examples=200)
@given(plans(st.one_of(meters(), limits)))
@example(Plan(TEN, 0, ((0, 3), (100_000, 5)), ((1, 0, 0, 0.34), (1, 0, 0, 0.34), (1, 0, 0, 0.34))))
def test_a_call_refunded_in_parts_mints_nothing(plan):
    first = [(after, later, 0, share) for after, later, _, share in plan.refunds]
    ledger, now = plan._replace(refunds=tuple(first)).carried_out()
    ledger.assert_nothing_was_minted(now)


@settings(max_examples=200)
@given(plans(st.one_of(meters(), limits), back=True, most_refunds=1))
@example(Plan(TEN, 0, ((10_000_000, 1), (500_000, 1)), ((1, -500_000, 0, 1.0),)))
def test_refunds_mint_nothing_where_time_goes_back(plan):
    ledger, now = plan.carried_out()
    highest = max([now, *(charge.at for charge in ledger.paid)])
    ledger.assert_nothing_was_minted(highest)


@given(
    plans(
        st.one_of(whole_meters(), fixed_windows(), sliding_windows(), logs(), calendar_quotas), most_refunds=1
    )
)
@example(Plan(SlidingWindowLog(64, "1s"), 0, (*[(1_000, 1)] * 64, (0, 1)), ((64, 0, 64, 1.0),)))
def test_cancelled_slots_mint_nothing(plan):
    """Slots still to come are given back; meters are on whole microseconds, as their slots are."""
    ledger, now = plan.carried_out(slots=True)
    ledger.assert_nothing_was_minted(now)


@given(plans(st.one_of(leaves, composites(leaves)), most_refunds=1))
@example(Plan(first_of(a=FixedWindow("1/h"), b=FixedWindow("9/s")), 0, ((0, 1), (0, 1)), ((1, 0, 1, 1.0),)))
def test_the_instant_of_a_charge_is_a_safe_receipt(plan):
    ledger, now = plan._replace(skew=0, refunds=()).carried_out()
    for _, later, of, _ in plan.refunds:
        which = of % len(ledger.paid)
        ledger.refund(now + later, which, 1, receipt=ledger.paid[which].at)
        ledger.assert_nothing_was_minted(now + later)


@given(stories(st.one_of(meters(), limits), back=False), st.integers(1, 100))
@example(Story(GCRA("3/s"), 0, (), 0, 2), 100)
@example(Story(SlidingWindow(5, "7us", buckets=3), 3, (Event("check", 0, 2),), 4, 3), 100)
def test_a_refund_right_away_restores_exactly(story, later_us):
    moment = story.played()
    limit, state, now, cost, skew, _ = moment
    charged = moment.check()
    if not charged.persist:
        return
    outcome = limit.refund(charged.state, now, cost, charged.decision.receipt, skew)
    refunded = moment._replace(state=outcome.state if outcome.persist else charged.state)
    for at in (now, now + 1, now + later_us, now + later_us * 10_000):
        assert refunded.peek(at) == moment.peek(at)
        for units in range(1, limit.max_cost + 1):
            assert without_receipt(refunded.check(at, units).decision) == without_receipt(
                moment.check(at, units).decision
            )
    assert state == moment.state


@given(plans(limits), st.integers(0, 9), st.integers(0, 10**7), st.integers(1, 3))
@example(Plan(TEN, 0, ((0, 3),), (), 0), 0, 0, 2)
def test_units_that_time_has_restored_are_not_restored_again(plan, of, later_us, times):
    """All that was in use when a call left is free again: giving that call back changes nothing."""
    limit, skew = plan.limit, plan.skew
    ledger, now, free_at = Ledger(limit, skew), plan.start, []
    for step, cost in plan.calls:
        now += step
        if ledger.check(now, cost):
            free_at.append(limit.forecast(ledger.state, now, 1, skew).full_at_us)
    which = of % len(free_at)
    now = max(now, free_at[which] + later_us)
    ledger.check(now, 1)
    before = [
        without_receipt(limit.check(ledger.state, now, n, skew).decision)
        for n in range(1, limit.max_cost + 1)
    ]
    for _ in range(times):
        ledger.refund(now, which, ledger.paid[which].cost)
    after = [
        without_receipt(limit.check(ledger.state, now, n, skew).decision)
        for n in range(1, limit.max_cost + 1)
    ]
    assert after == before


@given(meters(), st.integers(0, 10**15), st.lists(st.integers(0, 9), max_size=30))
@example(GCRA("1/s", burst=4), 10**15, [1, 1, 0, 1, 0, 0])
@example(GCRA("1/s", burst=1), 10**15, [1, 1, 0, 1, 0, 0] * 4)
def test_slots_that_are_given_back_from_the_end_were_never_taken(limit, now, steps):
    """The last ones are given back and taken again, any number of times; `steps` are the costs of those that
    come, and at 0 the last one goes.
    """
    ledger, never = Ledger(limit), None
    ledger.slot(now, 1)
    for cost in steps:
        if cost:
            ledger.slot(now, min(cost, limit.max_cost))
        elif len(ledger.paid) > 1:
            paid = ledger.paid.pop()
            ledger.state = limit.refund_last(ledger.state, now, paid.cost, paid.receipt)
    for paid in ledger.paid:
        never = limit.charge(never, now, limit.earliest(never, now, paid.cost), paid.cost)[0]
    for cost in range(1, limit.max_cost + 1):
        assert limit.earliest(ledger.state, now, cost) == limit.earliest(never, now, cost)
    assert limit.life(ledger.state, now) == limit.life(never, now)


@given(
    meters(),
    st.integers(0, 10**15),
    st.lists(st.integers(1, 9), min_size=2, max_size=6),
    st.sets(st.integers(0, 4)),
)
def test_the_last_of_those_that_stay_takes_none_of_the_others_along(limit, now, charged, gone):
    """Whichever were given back before it, and whatever of them is still charged."""
    ledger, never = Ledger(limit), None
    for cost in charged:
        ledger.slot(now, min(cost, limit.max_cost))
    last = ledger.paid.pop()
    for which, paid in enumerate(ledger.paid):
        if which in gone:
            ledger.refund(now, which, paid.cost)
        else:
            never = limit.charge(never, now, limit.earliest(never, now, paid.cost), paid.cost)[0]
    state = limit.refund_last(ledger.state, now, last.cost, last.receipt)
    for cost in range(1, limit.max_cost + 1):
        assert limit.earliest(state, now, cost) >= limit.earliest(never, now, cost)


@given(
    limit=fixed_windows() | sliding_windows() | logs() | span_quotas() | calendar_quotas,
    start=starts,
    gaps=st.lists(st.integers(0, 30), min_size=4, max_size=40),
    back=st.sets(st.integers(0, 39)),
)
@example(limit=SlidingWindow("1/s", buckets=1), start=3_456_000_000_000, gaps=[0] * 8, back={1, 3})
def test_slots_that_are_given_back_at_once_were_never_taken(limit, start, gaps, back):
    span_us = max(1, min(scales_us(limit)) // 8)
    state, dues, charges = None, [start], {}
    for number, gap in enumerate(gaps):
        due = limit.earliest(state, dues[-1] + gap * span_us, 1)
        state, decision, *_ = limit.charge(state, start, due, 1)
        dues.append(due)
        if number in back:
            receipt = decision.receipt
            charges.setdefault(limit.together(receipt), [receipt, 0])[1] += 1
    limit.inspect(state)
    state = limit.refund_many(state, start, [*charges.values()])
    if state is not None:
        limit.inspect(state)
    never = None
    for number, due in enumerate(dues[1:]):
        if number not in back:
            never = limit.charge(never, start, due, 1)[0]
    for due in dues:
        for at in (due, due + 1, due + span_us):
            assert limit.earliest(state, at, 1) == limit.earliest(never, at, 1)


def test_slots_that_another_limit_has_moved_leave_nothing_once_the_last_is_given_back():
    gcra, start = GCRA("10/s", burst=1), 10**15
    state, receipts = None, []
    for number in range(1, MOST_STRETCHES + 1):
        state, decision, *_ = gcra.charge(state, start, start + number * 300_000, 1)
        receipts.append(decision.receipt)
    for receipt in reversed(receipts):
        state = gcra.refund(state, start, 1, receipt).state
    assert gcra.earliest(state, start, 1) == start


@given(plans(st.one_of(meters(), limits)), st.booleans())
def test_every_state_is_known_for_one(plan, slots):
    ledger, _ = plan.carried_out(slots)
    if ledger.state is not None:
        plan.limit.inspect(ledger.state)
