"""settle: an API priced in tokens. The estimate is reserved, and the true cost is settled."""

import pytest

from shapekit import GCRA, FixedWindow, SlidingWindowLog

PRICED = {"gates": (FixedWindow(100, "1min"),), "quota": "150/day"}


def test_an_estimate_that_was_too_high_is_given_back(world, policy, fits):
    one = policy("1000/s", **PRICED)
    admission = one.admit(cost=60)
    world.enter(admission)
    assert world.settle(admission, 10) is True
    assert fits(one, 10) == 90


def test_an_estimate_that_was_too_low_is_charged(world, policy, fits):
    one = policy("1000/s", **PRICED)
    admission = one.admit(cost=10)
    world.enter(admission)
    assert world.settle(admission, 60) is True
    assert fits(one, 10) == 40


def test_a_true_estimate_changes_nothing(world, policy):
    one = policy("1/s")
    admission = one.admit(cost=3)
    world.enter(admission)
    world.settle(admission, 3)
    assert one.forecast().first_in == 3.0


def test_settling_inside_the_call_is_settling(policy):
    one = policy("10/s")
    with one.admit(cost=10) as admission:
        admission.settle(3)
    assert one.forecast().first_in == 0.3


@pytest.mark.anyio
async def test_asettle_is_settle(policy):
    one = policy("10/s")
    async with one.aadmit(cost=10) as admission:
        assert await admission.asettle(3) is True
    assert one.forecast().first_in == 0.3


def test_the_rate_pays_back_a_debt(world, policy, clock):
    one = policy("10/s")
    admission = one.admit(cost=1)
    world.enter(admission)
    world.settle(admission, 100)
    world.enter(one.admit())
    assert clock.now() == 10.0


def test_a_debt_above_every_limit_delays_the_next_call_and_then_ends(world, policy, clock):
    one = policy("1000/s", gates=(GCRA("1/s", burst=5), FixedWindow(5, "1min")))
    admission = one.admit()
    world.enter(admission)
    world.settle(admission, 20)
    world.enter(one.admit())
    assert clock.now() == 60.0


def test_each_call_is_settled_separately(world, policy, fits):
    one = policy("1000/s", **PRICED)
    admissions = [one.admit(cost=20) for _ in range(4)]
    for admission in admissions:
        world.enter(admission)
    for admission, actual in zip(admissions, (5, 40, 20, 0), strict=True):
        world.settle(admission, actual)
    assert fits(one, 10) == 100 - 65


def test_a_key_is_settled_apart_from_the_others(world, policy):
    one = policy("1/s")
    for key, actual in (("a", 5), ("b", 2)):
        admission = one.admit(key)
        world.enter(admission)
        world.settle(admission, actual)
    assert [one.forecast(key=key).first_in for key in "abc"] == [5.0, 2.0, 0.0]


def settled(world, policy, *actuals):
    """A window of 30, of which 10 are another's, and a call of 5 that is settled to each of these in turn."""
    one = policy("1000/s", gates=(FixedWindow(30, "1h"),))
    world.enter(one.admit(cost=10))
    admission = one.admit(cost=5)
    world.enter(admission)
    for actual in actuals:
        world.settle(admission, actual)
    return one


@pytest.mark.parametrize("actual", [0, 2, 5, 9])
def test_settling_again_at_the_same_cost_changes_nothing(world, policy, fits, actual):
    assert fits(settled(world, policy, actual, actual, actual), 1) == 20 - actual


@pytest.mark.parametrize("actuals", [(2, 7, 2), (9, 2), (4, 3, 2, 1), (0, 5, 0), (8, 0)])
def test_settling_again_at_another_cost_never_gives_back_what_others_have_used(world, policy, fits, actuals):
    # Whether a later settlement counts or is refused: the books do not hold less than the call did cost.
    assert fits(settled(world, policy, *actuals), 1) <= 20 - min(actuals[0], actuals[-1])


def test_settling_late_gives_back_to_a_window_that_is_still_open(world, policy, clock, fits):
    one = policy("1000/s", gates=(SlidingWindowLog(10, "1min"),))
    early, late = one.admit(cost=5), one.admit(cost=5)
    world.enter(early)
    clock.advance(30)
    world.enter(late)
    clock.advance(31)
    # The early call has left the window by itself: its refund is worth nothing to other calls.
    world.settle(early, 0)
    world.settle(late, 2)
    assert fits(one, 1) == 8


def test_after_a_reset_a_settlement_gives_nothing_back_and_charges_the_excess(world, policy):
    one = policy("1/s")
    admission = one.admit(cost=5)
    world.enter(admission)
    one.shaper.reset()
    assert world.settle(admission, 1) is False
    assert one.forecast().first_in == 0.0
    world.settle(admission, 9)
    assert one.forecast().first_in == 4.0


def test_a_debt_is_charged_although_the_key_was_forgotten_meanwhile(world, policy, clock):
    one = policy("1/s")
    admission = one.admit("idle", cost=1)
    world.enter(admission)
    clock.advance(5)
    # Calls of other keys sweep out idle states.
    for number in range(50):
        world.enter(one.admit(f"key-{number}"))
    world.settle(admission, 11)
    # Charged at once it would have drained 11 s after it left; at least the rest of that remains.
    assert one.forecast(key="idle").first_in >= 6.0
