"""A spent quota inside a composite refuses as a plain one does, by the name that it has there."""

from contextlib import ExitStack
from datetime import timedelta
from itertools import count

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import (
    GCRA,
    FixedWindow,
    Gate,
    ManualClock,
    MemoryStore,
    Policy,
    QueueFullError,
    Quota,
    QuotaExhaustedError,
    RateLimitedError,
    RedisStore,
    Shaper,
    SlidingWindowLog,
    SQLiteStore,
    all_of,
    any_of,
    first_of,
)
from shapekit.algorithms.compose import Composite

from ..redis_server import shared_server

DAY = 86_400
START = 10 * DAY
"""The eleventh of January 1970: 21 days are left of the month."""
_fresh = count()


@pytest.fixture(params=["memory", "SQLite", "Redis"])
def policy(request, tmp_path):
    """Makes policies on one of the stores, on a clock that jumps by itself."""
    clock = ManualClock(START, autojump=True)
    with ExitStack() as opened:
        if request.param == "memory":
            store = MemoryStore(clock)
        elif request.param == "SQLite":
            store = SQLiteStore(tmp_path / "limits.db", clock=clock)
        else:
            client = opened.enter_context(shared_server().client())
            store = RedisStore(client, clock=clock, prefix=f"composites{next(_fresh)}")
        opened.callback(store.close)
        yield lambda *gates: Policy("100/s", gates=gates, store=store, name="api")


MONTH, DAILY, ROLLING = Quota("3/month"), Quota("3/day"), Quota("3/rolling:30d")
FAST = GCRA("50/s", burst=9)

SPENT = [
    ((MONTH,), "quota", 21 * DAY),
    ((ROLLING,), "quota", 30 * DAY),
    ((all_of(second=FAST, month=MONTH),), "month", 21 * DAY),
    ((all_of(quota=FAST, spare=MONTH),), "spare", 21 * DAY),
    ((FAST, all_of(second=FAST, rolling=ROLLING)), "rolling", 30 * DAY),
    ((all_of(fast=FAST, deep=all_of(a=FAST, b=all_of(x=FAST, y=MONTH))),), "deep.b.y", 21 * DAY),
    ((all_of(day=DAILY, month=MONTH),), "month", 21 * DAY),
    ((all_of(month=MONTH, day=DAILY),), "month", 21 * DAY),
    ((first_of(month=MONTH, never=Quota("1/day")),), "never", DAY),
    ((any_of(month=MONTH, day=DAILY),), "day", DAY),
    ((all_of(second=FAST, any=first_of(month=MONTH, rolling=ROLLING)),), "any.month", 21 * DAY),
    # Of limits with equal waits, the first binds.
    ((all_of(day=Quota("3/rolling:1d"), log=SlidingWindowLog(3, "1d")),), "day", DAY),
    ((any_of(day=Quota("3/rolling:1d"), log=SlidingWindowLog(3, "1d")),), "day", DAY),
]


def used_up(one):
    """Takes all slots that may leave soon; the clock then stands where the last of them has left."""
    clock = one.shaper.core.store.clock
    while reservation := one.shaper.reserve(max_wait="1s"):
        clock.advance(reservation.delay)
    return clock


@pytest.mark.parametrize(("gates", "binding", "wait_s"), SPENT, ids=[binding for _, binding, _ in SPENT])
@pytest.mark.parametrize("max_wait", [None, "1s"])
def test_a_spent_quota_refuses_at_once(policy, gates, binding, wait_s, max_wait):
    one = policy(*gates)
    clock = used_up(one)
    began = clock.now()
    with pytest.raises(QuotaExhaustedError) as caught, one.admit(max_wait=max_wait):
        pytest.fail("left")
    assert caught.value.decision.binding == binding
    assert clock.now() == began < START + 1
    assert caught.value.retry_after == pytest.approx(wait_s, abs=1)
    assert caught.value.decision.remaining == 0

    async def awaited():
        async with one.aadmit(max_wait=max_wait):
            pytest.fail("left")

    with pytest.raises(QuotaExhaustedError):
        anyio.run(awaited)
    # A bound that covers the wait makes calls wait for it.
    bound = timedelta(seconds=caught.value.retry_after)
    assert one.shaper.reserve(max_wait=bound).delay == caught.value.retry_after


NOT_SPENT = [
    ((all_of(quota=GCRA("1/min", burst=3), month=Quota("9/month")),), 60),
    ((all_of(month=GCRA("1/min", burst=3), quota=GCRA("1/s", burst=9)),), 60),
    # One of several ways is only slow; and a call that has to wait even longer does not wait for the quota.
    ((first_of(month=MONTH, slow=GCRA("1/min", burst=1)),), 60),
    ((any_of(month=MONTH, slow=GCRA("1/min", burst=3)),), 60),
    ((all_of(slow=GCRA("1/week", burst=3), day=DAILY),), 7 * DAY),
    ((all_of(day=DAILY, slow=GCRA("1/week", burst=3)),), 7 * DAY),
    ((all_of(slow=FixedWindow(3, "30d"), day=DAILY),), 20 * DAY),
    ((all_of(log=SlidingWindowLog(3, "1d"), day=Quota("3/rolling:1d")),), DAY),
    ((any_of(log=SlidingWindowLog(3, "1d"), day=Quota("3/rolling:1d")),), DAY),
]


@pytest.mark.parametrize(("gates", "wait_s"), NOT_SPENT, ids=range(len(NOT_SPENT)))
def test_a_wait_for_another_limit_is_waited_for_or_fills_the_queue(policy, gates, wait_s):
    one = policy(*gates)
    used_up(one)
    with pytest.raises(QueueFullError) as caught, one.admit(max_wait="1s"):
        pytest.fail("left")
    assert caught.value.decision.binding is None
    assert caught.value.delay == pytest.approx(wait_s, abs=1)
    assert one.shaper.reserve().delay == caught.value.delay


LEAVES = [
    GCRA("1/s", burst=2),
    GCRA("1/week", burst=3),
    FixedWindow(3, "1h"),
    SlidingWindowLog(3, "2d"),
    Quota("3/day"),
    Quota("4/month"),
    Quota("2/rolling:1d"),
]
NAMES = ("a", "b", "quota")


def composites():
    leaves = st.sampled_from(LEAVES)
    made = st.sampled_from([all_of, any_of, first_of])

    def composed(parts):
        return st.builds(
            lambda make, chosen: make(**dict(zip(NAMES, chosen, strict=False))),
            made,
            st.lists(parts, min_size=2, max_size=3),
        )

    return composed(st.one_of(leaves, composed(leaves)))


def part_named(composite, binding):
    part = composite
    for name in binding.split("."):
        assert isinstance(part, Composite)
        part = part.parts[part.names.index(name)]
    return part


stories = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 3_600, DAY, 3 * DAY]),
        st.integers(1, 2),
        st.sampled_from([None, 0, 3_600, DAY, 31 * DAY]),
    ),
    min_size=4,
    max_size=25,
)


def follow(composite, story, shaper, clock):
    """The judge is a gate of the same strategy: its decision for now, and the part that its answer names."""
    judge = Gate(composite, clock=clock)
    for span, cost, max_wait in story:
        clock.advance(span)
        if cost > composite.max_cost:
            continue
        denial = judge.check(cost=cost)
        if denial:
            assert shaper.reserve(cost=cost).delay == 0
            continue
        binds = isinstance(part_named(composite, denial.binding), Quota)
        reservation = shaper.reserve(cost=cost, max_wait=max_wait)
        if max_wait is None:
            assert reservation.accepted is not binds
        else:
            assert reservation.accepted is (denial.retry_after <= max_wait)
        assert reservation.delay == denial.retry_after
        if reservation.accepted:
            assert reservation.cancel()
            continue
        with pytest.raises(RateLimitedError) as caught:
            shaper.schedule(cost=cost, max_wait=max_wait)
        assert type(caught.value) is (QuotaExhaustedError if binds else QueueFullError)
        if binds:
            assert caught.value.decision == denial


@settings(max_examples=400)
@given(composites(), stories)
def test_exactly_a_quota_that_binds_makes_it_a_spent_quota(composite, story):
    clock = ManualClock(START)
    follow(composite, story, Shaper(gates=(composite,), clock=clock), clock)


@settings(max_examples=60)
@given(composites(), stories)
def test_exactly_a_quota_that_binds_makes_it_a_spent_quota_in_a_file(tmp_path_factory, composite, story):
    clock = ManualClock(START)
    store = SQLiteStore(tmp_path_factory.mktemp("limits") / "limits.db", clock=clock)
    follow(composite, story, Shaper(gates=(composite,), store=store, name="api"), clock)
    store.close()


@settings(max_examples=100)
@given(composites(), stories)
def test_exactly_a_quota_that_binds_makes_it_a_spent_quota_on_a_server(composite, story):
    clock = ManualClock(START)
    with shared_server().client() as client:
        store = RedisStore(client, clock=clock, prefix=f"story{next(_fresh)}")
        follow(composite, story, Shaper(gates=(composite,), store=store, name="api"), clock)
