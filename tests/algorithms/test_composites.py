"""all_of, any_of and first_of: none or all, the parts that pay and bind, the wait, against brute force."""

from contextlib import closing

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shapekit import GCRA, FixedWindow, Gate, ManualClock, Quota, Rate, all_of, any_of, first_of
from shapekit.algorithms.compose import Composite

from .brute_force import NEVER, brute_force
from .limits import (
    composites,
    exactly,
    fixed_windows,
    leaves,
    limits,
    logs,
    meters,
    nested,
    sliding_windows,
    span_quotas,
)
from .stories import Event, Story, stories

tiny = st.integers(1, 40)
tiny_leaves = st.one_of(
    meters(tiny), fixed_windows(tiny), sliding_windows(tiny), logs(tiny), span_quotas(tiny)
)
calls = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=15)


def payers(limit, receipt):
    """The paths of the parts that were charged by a receipt."""
    if not isinstance(limit, Composite):
        return ("",)
    return tuple(
        f"{name}.{path}" if path else name
        for name, part, own in zip(limit.names, limit.parts, receipt, strict=True)
        if own is not None
        for path in payers(part, own)
    )


@settings(max_examples=300)
@given(nested(tiny_leaves), st.integers(0, 10**6), calls)
@example(all_of(a=FixedWindow(2, exactly(9)), b=FixedWindow(2, exactly(9))), 0, [(0, 1), (0, 1), (0, 1)])
@example(any_of(a=GCRA(Rate.of(1, 5), 2), b=GCRA(Rate.of(1, 5), 2)), 0, [(0, 1), (0, 1), (0, 1), (3, 2)])
@example(first_of(a=GCRA(Rate.of(1, 9), 1), b=GCRA(Rate.of(1, 9), 3)), 0, [(0, 1), (0, 2), (0, 3), (9, 1)])
@example(all_of(a=GCRA(Rate.of(2, 7), 3), b=FixedWindow(2, exactly(11))), 5, [(1, 2), (1, 1), (2, 2), (1, 1)])
def test_a_composite_does_what_brute_force_does(limit, now, moves):
    model, state = brute_force(limit), None
    for step_us, units in moves:
        now += step_us
        cost = min(units, limit.max_cost)
        expected = model.check(now, cost)
        outcome = limit.check(state, now, cost)
        decision = outcome.decision
        assert decision.binding == expected.binding
        assert tuple(decision[:6]) == tuple(expected.answer)
        if outcome.persist:
            assert payers(limit, decision.receipt) == expected.paid
            state = outcome.state


@given(nested(tiny_leaves), st.integers(1, 100))
def test_the_largest_cost_is_that_of_brute_force(limit, cost):
    assert (cost <= limit.max_cost) == brute_force(limit).within_reach(cost)
    assert limit.max_cost < NEVER


@given(stories(nested(leaves)))
def test_none_or_all(story):
    """A denial leaves every part as it was, an admission charges exactly those its receipt names."""
    limit, state, now, cost, skew, _ = moment = story.played()
    outcome = moment.check()
    before = state or (None,) * len(limit.parts)
    if not outcome.persist:
        assert outcome.state is state
        return
    for part, own, after, receipt in zip(
        limit.parts, before, outcome.state, outcome.decision.receipt, strict=True
    ):
        alone = part.check(own, now, cost, skew) if cost <= part.max_cost else None
        if receipt is None:
            assert after is own
        else:
            assert alone.decision.allowed
            assert (after, receipt) == (alone.state, alone.decision.receipt)
    admitting = [
        cost <= part.max_cost and part.check(own, now, cost, skew).decision.allowed
        for part, own in zip(limit.parts, before, strict=True)
    ]
    charged = [receipt is not None for receipt in outcome.decision.receipt]
    expected = {
        "all_of": [True] * len(charged),
        "any_of": admitting,
        "first_of": [index == admitting.index(True) for index in range(len(charged))],
    }
    assert charged == expected[limit.kind]


@given(stories(composites(leaves)))
def test_the_departure_is_where_the_parts_meet(story):
    """all_of leaves at the first instant at which every part admits, the others at the first of any."""
    moment = story.played()
    limit, skew, now, cost = moment.limit, moment.skew, moment.now, moment.cost
    states = moment.state or (None,) * len(limit.parts)
    each = [
        part.earliest(own, now, cost, skew)
        for part, own in zip(limit.parts, states, strict=True)
        if cost <= part.max_cost
    ]
    assert moment.earliest() == (max(each) if limit.kind == "all_of" else min(each))


@given(stories(leaves), st.integers(2, 3))
def test_twins_decide_as_one_and_the_first_binds(story, count):
    """Two parts that are alike tie always: all_of and any_of decide as the part alone, in its name."""
    moment = story.played()
    alone = moment.check().decision
    for combine in (all_of, any_of):
        twins = combine(**dict.fromkeys("abc"[:count], story.limit))
        both = twins.check((moment.state,) * count, moment.now, moment.cost, moment.skew).decision
        assert both.binding == "a"
        assert both[:6] == alone[:6]


@given(limits, st.integers(0, 10**15))
def test_first_of_leaves_the_second_alone_while_the_first_admits(limit, now):
    both = first_of(main=limit, spare=limit)
    state, outcome = None, None
    for _ in range(3):
        outcome = both.check(state, now, 1)
        if outcome.decision.receipt is None or outcome.decision.receipt[0] is None:
            break
        state = outcome.state
        assert state[1] is None
        assert outcome.decision.binding.startswith("main")


def test_a_state_of_alternatives_is_kept_as_long_as_the_part_that_takes_longest():
    hour, second = FixedWindow(2, exactly(3_600_000_000)), GCRA(Rate.of(1, 1_000_000), 1)
    for either in (any_of(hour=hour, second=second), any_of(second=second, hour=hour)):
        assert either.check(None, 0, 1).ttl_us == 3_600_000_000


def test_alternatives_debit_the_part_that_paid():
    both = first_of(main=GCRA("1/s", burst=1), spare=GCRA("1/s", burst=5))
    first = both.check(None, 0, 1)
    second = both.check(first.state, 0, 1)
    assert second.decision.binding == "spare"
    settled = both.debit(second.state, 0, 2, second.decision.receipt).state
    assert settled == (second.state[0], both.parts[1].check(None, 0, 3).state)


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from("xy"), st.sampled_from("uv")), max_size=40))
@example([(0, "x", "u")] * 4 + [(0, "y", "u")] * 3)
def test_parts_with_keys_of_their_own_are_charged_together_or_not_at_all(visits):
    """Two addresses, two users: each has its own state, and a denial by one leaves the other whole."""
    limit = all_of(ip=FixedWindow(3, "1s"), user=FixedWindow(5, "1s"))
    clock = ManualClock(100)
    used: dict[tuple[str, int], int] = {}
    with closing(Gate(limit, clock=clock)) as gate:
        for twentieths, ip, user in visits:
            clock.advance(twentieths / 20)
            second = clock.now_us() // 10**6
            ip_used, user_used = used.get((ip, second), 0), used.get((user, second), 0)
            decision = gate.check({"ip": ip, "user": user})
            assert decision.allowed == (ip_used < 3 and user_used < 5)
            if decision:
                used[ip, second], used[user, second] = ip_used + 1, user_used + 1
                assert decision.binding == ("ip" if 3 - ip_used <= 5 - user_used else "user")


@given(stories(st.just(first_of(a=GCRA("5/s", burst=2), b=all_of(c=Quota("4/day"), d=FixedWindow("3/s"))))))
@example(
    Story(
        first_of(a=GCRA("5/s", burst=2), b=all_of(c=Quota("4/day"), d=FixedWindow("3/s"))),
        0,
        tuple(Event("check", 0, 1) for _ in range(9)),
    )
)
def test_the_binding_part_is_named_by_its_path(story):
    decision = story.played().check().decision
    assert decision.binding in {"a", "b.c", "b.d"}
