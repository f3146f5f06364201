"""Refusals: at once, with the figures, and nothing consumed."""

import pickle

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    CostExceedsLimitError,
    FixedWindow,
    ManualClock,
    QueueFullError,
    Quota,
    QuotaExhaustedError,
    Shaper,
)

from ..algorithms.queue.follower import SECOND, Follower
from ..algorithms.queue.setups import ALIGNED, ALWAYS

SETUPS = {"plain": (("10/s",), {}, []), "burst": (("7/s",), {"burst": 4}, [])} | ALWAYS | ALIGNED
NEW_YEAR_S = 1_704_067_200
DAY = 86_400


@pytest.fixture
def shaper(clock):
    return Shaper("1/s", max_wait=2, clock=clock)


def test_a_wait_above_max_wait_is_refused_with_all_figures(shaper, clock):
    for _ in range(3):
        shaper.reserve("stripe")
    with pytest.raises(QueueFullError) as caught:
        shaper.schedule("stripe")
    error = caught.value
    assert (error.delay, error.max_wait, error.key) == (3.0, 2.0, "stripe")
    assert error.retry_after == error.decision.retry_after == 1.0
    assert not error.decision
    assert error.code == "queue_full"
    assert error.policy == shaper.name
    assert str(error) == (
        f"policy '{shaper.name}', key 'stripe': a wait of 3 s exceeds max_wait=2 s; "
        "raise max_wait, lower the traffic, or retry after 1 s"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (again.delay, again.max_wait, again.key, str(again)) == (3.0, 2.0, "stripe", str(error))
    assert clock.naps == []


def test_a_refusal_has_whether_the_key_is_held(shaper):
    shaper.hold("12s", key="held")
    for _ in range(3):
        shaper.reserve("full")
    for key in ("held", "full"):
        with pytest.raises(QueueFullError) as caught:
            shaper.schedule(key)
        assert caught.value.held == pickle.loads(pickle.dumps(caught.value)).held == (key == "held")


def test_the_awaitable_form_refuses_alike(shaper, clock, anyio_backend):
    async def main():
        for _ in range(3):
            await shaper.areserve("stripe")
        assert not await shaper.areserve("stripe")
        with pytest.raises(QueueFullError) as caught:
            await shaper.aschedule("stripe")
        assert (caught.value.delay, caught.value.max_wait, caught.value.key) == (3.0, 2.0, "stripe")

    anyio.run(main, backend=anyio_backend)
    assert clock.naps == []


def test_a_wait_of_just_max_wait_is_accepted(shaper):
    reservations = [shaper.reserve() for _ in range(4)]
    assert [reservation.accepted for reservation in reservations] == [True, True, True, False]
    assert [reservation.delay for reservation in reservations] == [0.0, 1.0, 2.0, 3.0]


def test_a_refused_reservation_is_falsy_and_has_its_refusal(shaper):
    refused = [shaper.reserve() for _ in range(4)][3]
    assert not refused
    assert not refused.accepted
    assert refused.refusal is not None
    assert refused.refusal.retry_after == 1.0
    assert refused.departs_at == 1_003.0
    assert [reservation.refusal for reservation in [shaper.reserve("fresh")]] == [None]


def test_nothing_is_consumed_by_any_number_of_refusals(shaper):
    for _ in range(3):
        shaper.reserve()
    for _ in range(100):
        assert not shaper.reserve()
    assert shaper.reserve(max_wait=None).delay == 3.0


def test_a_call_may_set_a_longer_or_shorter_max_wait_than_the_shaper(shaper):
    for _ in range(3):
        shaper.reserve()
    assert not shaper.reserve(max_wait=2.999_999)
    assert shaper.reserve(max_wait=3).delay == 3.0
    assert shaper.reserve(max_wait="4s").delay == 4.0
    assert shaper.reserve(max_wait=None).delay == 5.0
    assert not shaper.reserve()


def test_now_or_never(clock):
    shaper = Shaper("10/s", burst=2, max_wait=0, clock=clock)
    assert [shaper.reserve().accepted for _ in range(4)] == [True, True, False, False]
    with pytest.raises(QueueFullError) as caught:
        shaper.schedule()
    assert (caught.value.delay, caught.value.max_wait, caught.value.retry_after) == (0.1, 0.0, 0.1)
    clock.advance(0.099_999)
    assert not shaper.reserve()
    clock.advance(0.000_001)
    assert shaper.reserve().delay == 0.0


@pytest.mark.parametrize("max_wait", [-1, True, "", "soon", float("nan"), float("inf"), [1]])
def test_wrong_values_of_max_wait_are_refused(shaper, refused, max_wait):
    refused(lambda: Shaper("1/s", max_wait=max_wait), "max_wait", "unit")
    refused(lambda: shaper.reserve(max_wait=max_wait), "max_wait", "unit")
    refused(lambda: shaper.schedule(max_wait=max_wait), "max_wait", "unit")
    assert shaper.reserve().delay == 0.0


@pytest.mark.parametrize("cost", [0, -1, 1.0, True, "1", None, 2**80])
def test_wrong_costs_are_refused(shaper, cost):
    with pytest.raises(ValueError, match="cost"):
        shaper.reserve(cost=cost)
    with pytest.raises(ValueError, match="cost"):
        shaper.schedule(cost=cost)
    assert shaper.reserve().delay == 0.0


def test_a_cost_that_no_waiting_admits_is_refused_without_the_store(clock):
    shaper = Shaper("10/s", burst=2, gates=(GCRA("5/s", burst=4), FixedWindow(6, "1m")), clock=clock)
    shaper.core.store.close()
    with pytest.raises(CostExceedsLimitError) as caught:
        shaper.reserve("key", cost=5)
    assert (caught.value.cost, caught.value.limit, caught.value.key) == (5, 4, "key")


def test_a_cost_above_the_burst_of_the_pace_only_waits_longer(clock):
    shaper = Shaper("10/s", burst=2, clock=clock)
    assert [shaper.reserve(cost=30).delay for _ in range(3)] == [0.0, 3.0, 6.0]


@settings(max_examples=250)
@given(
    st.sampled_from(sorted(SETUPS)),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8)), max_size=12),
    st.integers(1, 4),
    st.integers(0, 3 * SECOND),
)
def test_a_refused_call_is_accepted_after_just_retry_after(name, before, cost, max_wait):
    args, options, _ = SETUPS[name]
    follower = Follower(*args, **options)
    for each, tenths in before:
        follower.reserve(each, 1_000 * SECOND)
        follower.advance(tenths * SECOND // 10)
    shaper, bound = follower.shaper, max_wait / SECOND
    for _ in range(3):
        refused = shaper.reserve(cost=cost, max_wait=bound)
        if not refused:
            retry_after = refused.refusal.retry_after_us
            is_quota = refused.refusal.binding == "quota"
            assert retry_after == refused.grant.wait_us - (0 if is_quota else max_wait)
            if not is_quota:
                follower.clock.advance((retry_after - 1) / SECOND)
                assert not shaper.reserve(cost=cost, max_wait=bound)
                follower.clock.advance(1 / SECOND)
            else:
                follower.clock.advance(retry_after / SECOND)
            assert shaper.reserve(cost=cost, max_wait=bound)


@settings(max_examples=150)
@given(
    st.sampled_from(sorted(SETUPS)),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8), st.booleans()), max_size=15),
)
def test_a_refusal_leaves_the_queue_as_it_was(name, story):
    args, options, _ = SETUPS[name]
    refusing, quiet = (Follower(*args, **options) for _ in range(2))
    for cost, tenths, cancels in story:
        expected = quiet.reserve(cost, 1_000 * SECOND).slot.grant
        if expected.wait_us:
            assert not refusing.reserve(cost, expected.wait_us - 1)
            assert not refusing.reserve(cost, 0)
        assert refusing.reserve(cost, 1_000 * SECOND).slot.grant[:3] == expected[:3]
        for follower in (refusing, quiet):
            if cancels and follower.waiting:
                follower.cancel(follower.waiting[0])
            follower.advance(tenths * SECOND // 10)


def month_shaper(**options):
    """Three calls a month, one day before its end."""
    clock = ManualClock(NEW_YEAR_S - DAY, autojump=True)
    return Shaper("1/s", gates=(Quota("3/month"),), clock=clock, **options), clock


def test_a_spent_quota_refuses_at_once_with_the_way_to_the_next_period():
    shaper, clock = month_shaper()
    for _ in range(3):
        shaper.schedule()
    with pytest.raises(QuotaExhaustedError) as caught:
        shaper.schedule()
    error = caught.value
    assert (error.code, error.key) == ("quota_exhausted", "default")
    assert error.retry_after == DAY - 2
    assert error.decision.binding == "quota"
    assert (error.decision.limit, error.decision.current, error.decision.remaining) == (3, 3, 0)
    assert error.decision.reset_at == NEW_YEAR_S
    assert clock.now() == NEW_YEAR_S - DAY + 2
    clock.set(NEW_YEAR_S)
    assert shaper.schedule().delay == 0.0


def test_a_quota_is_waited_for_if_an_explicit_max_wait_covers_the_wait():
    for shaper, clock in (month_shaper(), month_shaper(max_wait="2d")):
        for _ in range(3):
            shaper.schedule()
        assert shaper.schedule(**({} if shaper._max_wait_us else {"max_wait": "2d"})).delay == DAY - 2
        assert clock.now() == NEW_YEAR_S


def test_a_max_wait_that_does_not_cover_it_does_not_help():
    shaper, clock = month_shaper(max_wait="1h")
    for _ in range(3):
        shaper.schedule()
    with pytest.raises(QuotaExhaustedError) as caught:
        shaper.schedule()
    assert caught.value.retry_after == DAY - 2
    clock.advance(DAY - 2 - 3_600)
    assert shaper.schedule().delay == 3_600


def test_a_full_queue_is_no_spent_quota():
    shaper, _ = month_shaper(max_wait=1)
    assert shaper.reserve()
    assert shaper.reserve()
    with pytest.raises(QueueFullError):
        shaper.schedule()


def test_a_queue_that_reaches_into_the_next_period_is_refused_by_this_one():
    shaper, clock = month_shaper()
    clock.set(NEW_YEAR_S - 2)
    assert [shaper.reserve().accepted for _ in range(4)] == [True, True, True, True]
    assert shaper.reserve().accepted
    with pytest.raises(QuotaExhaustedError):
        shaper.schedule()


def test_a_slot_given_back_is_not_spent():
    shaper, _ = month_shaper()
    reservations = [shaper.reserve() for _ in range(3)]
    assert not shaper.reserve()
    assert reservations[1].cancel()
    assert shaper.reserve().delay == 1.0
    assert not shaper.reserve()
    assert reservations[2].cancel()
    assert shaper.reserve().delay == 2.0
    assert not shaper.reserve()


def test_a_reservation_is_no_tuple(shaper):
    one = shaper.reserve()
    assert one != type(one)(one.core, one.key, one.granted)
    with pytest.raises(TypeError):
        _, _, _ = one
    with pytest.raises(TypeError):
        one[0]
    with pytest.raises(AttributeError):
        one.paid = True
