"""A budget that is nearly used up is reported once a period, at the price of one look a second."""

from contextlib import suppress

import anyio
import pytest

from shapekit import (
    ManualClock,
    MemoryStore,
    Policy,
    Quota,
    QuotaExhaustedError,
    Shaper,
    StoreUnavailableError,
    all_of,
    first_of,
    off,
)
from shapekit._queue.reporter import MOST_KEYS
from shapekit.algorithms.queue.wire import LOOK
from shapekit.events import BudgetReached, Departed, Measured, Reserved, StoreFailed
from shapekit.testing import FaultyStore

from .calls import WAYS

DAY_S = 86_400


class Counting(MemoryStore):
    """A store that counts its looks."""

    def __init__(self, clock):
        super().__init__(clock)
        self.looks = 0

    def bind(self, name, program, operation):
        call = super().bind(name, program, operation)
        if operation != LOOK:
            return call

        def look(*args):
            self.looks += 1
            return call(*args)

        return look


def reached(events):
    return [event for event in events if isinstance(event, BudgetReached)]


def spend(policy, clock, units, key="default"):
    """So many calls, each a second after the one before."""
    for _ in range(units):
        clock.advance(1)
        with policy.admit(key):
            pass


@pytest.mark.parametrize("way", WAYS)
def test_each_share_is_reported_when_it_is_first_reached(world, way, clock, recorded):
    policy = Policy(quota="20/day", name="stripe", clock=clock)
    shares = []
    for used in range(1, 21):
        clock.advance(1)
        world.run(policy, way, "alice")
        shares += [(used, event) for event in reached(recorded)]
        recorded.clear()
    assert shares == [
        (16, BudgetReached("stripe", "alice", "quota", 0.8, 16, 20)),
        (19, BudgetReached("stripe", "alice", "quota", 0.95, 19, 20)),
    ]


TWENTY = [
    BudgetReached("stripe", "alice", "quota", 0.8, 16, 20),
    BudgetReached("stripe", "alice", "quota", 0.95, 19, 20),
]


def test_every_store_reports_the_same_events(store, clock, recorded):
    policy = Policy(quota="20/day", name="stripe", store=store)
    spend(policy, clock, 20, "alice")
    assert reached(recorded) == TWENTY


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_every_store_reports_the_same_events_to_tasks(store, backend, clock, recorded):
    policy = Policy(quota="20/day", name="stripe", store=store)

    async def main():
        for _ in range(20):
            clock.advance(1)
            async with policy.aadmit("alice"):
                pass
        await store.aclose()

    anyio.run(main, backend=backend)
    assert reached(recorded) == TWENTY


def test_shares_passed_at_once_are_reported_in_order(clock, recorded):
    policy = Policy(quota="100/day", name="stripe", clock=clock)
    with policy.admit(cost=99):
        pass
    assert recorded == [
        Reserved("stripe", "default", 99, 0.0),
        BudgetReached("stripe", "default", "quota", 0.8, 99, 100),
        BudgetReached("stripe", "default", "quota", 0.95, 99, 100),
        Departed("stripe", "default", 99, 0.0, 0.0),
    ]


def test_every_period_and_every_key_is_reported_separately(clock, recorded):
    policy = Policy(quota="10/day", name="stripe", clock=clock)
    for _ in range(2):
        for key in ("alice", "bob"):
            spend(policy, clock, 9, key)
        clock.set(clock.now() // DAY_S * DAY_S + DAY_S)
    assert [(event.key, event.used) for event in reached(recorded)] == [("alice", 8), ("bob", 8)] * 2


def test_a_share_that_is_reached_again_is_reported_once(clock, recorded):
    policy = Policy(quota="10/day", name="stripe", clock=clock)
    for _ in range(3):
        clock.advance(1)
        with policy.admit(cost=8) as admission:
            pass
        admission.settle(0)
        clock.advance(1)
        policy.shaper.reserve().cancel()
    assert [event.used for event in reached(recorded)] == [8]


def test_the_shares_of_a_changed_limit_are_reported_anew(clock, recorded):
    policy = Policy(quota="10/day", name="stripe", clock=clock)
    spend(policy, clock, 9)
    policy.configure(quota="20/day", reason="paid more")
    spend(policy, clock, 11)
    assert [(event.share, event.used, event.limit) for event in reached(recorded)] == [
        (0.8, 8, 10),
        (0.8, 16, 20),
        (0.95, 19, 20),
    ]


def test_a_rolling_quota_is_reported_whenever_its_usage_rises(clock, recorded):
    policy = Policy(quota="10/rolling:1h", name="stripe", clock=clock)
    for _ in range(2):
        spend(policy, clock, 10)
        clock.advance(3_600)
    assert [(event.share, event.used) for event in reached(recorded)] == [(0.8, 8), (0.95, 10)] * 2


def test_every_quota_is_reported_by_its_name(clock, recorded):
    gates = (all_of(hour=Quota("10/fixed:1h"), day=Quota("12/day")), Quota("100/month"))
    shaper = Shaper(gates=gates, name="stripe", clock=clock)
    for _ in range(10):
        clock.advance(1)
        shaper.schedule()
    assert [(event.quota, event.share, event.used) for event in reached(recorded)] == [
        ("hour", 0.8, 8),
        ("hour", 0.95, 10),
        ("day", 0.8, 10),
    ]
    assert len(reached(recorded)) == 3


def test_a_key_is_looked_at_once_a_second_while_there_is_a_listener(clock):
    store = Counting(clock)
    policy = Policy(quota="1000/day", name="stripe", store=store)
    spend(policy, clock, 3)
    assert store.looks == 0
    events = []
    with policy.listen(events.append):
        for _ in range(40):
            for key in ("alice", "bob"):
                with policy.admit(key):
                    pass
            clock.advance(0.1)
        with off(), policy.admit("alice"):
            pass
    assert store.looks == 2 * 4
    spend(policy, clock, 3)
    assert store.looks == 2 * 4


def test_a_policy_without_a_quota_makes_no_look(clock, recorded):
    store = Counting(clock)
    spend(Policy("10/s", name="stripe", store=store), clock, 3)
    assert store.looks == 0
    assert len(recorded) == 6


def test_a_refused_call_looks_too(clock, recorded):
    """All of a budget may be used within the second of a look; the next call sees it."""
    policy = Policy(quota="10/day", name="stripe", clock=clock)
    for _ in range(10):
        policy.shaper.schedule()
    assert reached(recorded) == []
    clock.advance(1)
    with suppress(QuotaExhaustedError):
        policy.shaper.schedule()
    assert [event.share for event in reached(recorded)] == [0.8, 0.95]


def test_a_call_that_is_only_measured_is_reported_too(world, clock, recorded):
    policy = Policy(quota="10/day", name="stripe", enforce=False, clock=clock)
    world.run(policy, "admit", "alice", cost=8)
    assert [type(event) for event in recorded] == [Measured, BudgetReached]


class Blind(MemoryStore):
    """A store that answers every operation except looks."""

    def bind(self, name, program, operation):
        call = super().bind(name, program, operation)
        if operation != LOOK:
            return call

        def look(*args):
            raise StoreUnavailableError("gone")

        return look


def test_a_failing_look_disturbs_no_call(world, clock, recorded):
    for kind in (Blind, lambda clock: FaultyStore(Blind(clock))):
        policy = Policy(quota="10/day", name="stripe", store=kind(clock))
        for _ in range(3):
            clock.advance(1)
            world.run(policy, "admit", "alice", cost=3)
    assert [type(event) for event in recorded] == [Reserved, Departed] * 6
    assert not any(isinstance(event, StoreFailed) for event in recorded)


def test_a_call_interrupted_by_a_listener_gives_its_slot_back(clock):
    policy = Policy(quota="10/day", name="stripe", clock=clock)

    def interrupt(event):
        if isinstance(event, BudgetReached):
            raise KeyboardInterrupt

    with policy.listen(interrupt), pytest.raises(KeyboardInterrupt):
        policy.shaper.schedule(cost=9)
    assert policy.quotas()[0].used == 0


def test_of_many_keys_the_oldest_is_forgotten(clock, recorded):
    policy = Policy(quota="10/day", name="stripe", clock=clock)
    for number in range(MOST_KEYS + 1):
        with policy.admit(f"key {number}", cost=8):
            pass
    clock.advance(1)
    for key in ("key 0", f"key {MOST_KEYS}"):
        with policy.admit(key):
            pass
    assert len(policy.shaper.core.budgets._keys) == MOST_KEYS
    assert [event.key for event in reached(recorded)[-2:]] == [f"key {MOST_KEYS}", "key 0"]


def test_a_spent_budget_among_alternatives_is_reported(clock, recorded):
    either = first_of(main=Quota("5/day"), overflow=Quota("10/day"))
    shaper = Shaper(gates=(either,), name="stripe", clock=clock)
    for _ in range(5):
        clock.advance(1)
        shaper.schedule()
    assert [(event.quota, event.share) for event in reached(recorded)] == [("main", 0.8), ("main", 0.95)]


def test_a_spread_budget_is_reported_as_it_is_used(recorded):
    clock = ManualClock(autojump=True)
    policy = Policy(quota="20/day", spread=True, name="stripe", clock=clock)
    left_at = []
    with policy.listen(lambda event: isinstance(event, BudgetReached) and left_at.append(clock.now())):
        for _ in range(20):
            with policy.admit():
                pass
    # The slot is taken when the call before has left, and reported at once.
    assert left_at == [14 * DAY_S / 20, 17 * DAY_S / 20]
