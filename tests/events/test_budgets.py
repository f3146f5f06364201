"""When a budget is nearly used up, that is told: once a period, at the price of a look a second."""

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
    """A store that knows how often it was looked at."""

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
def test_each_share_is_told_when_it_is_first_reached(world, way, clock, heard):
    policy = Policy(quota="20/day", name="stripe", clock=clock)
    told = []
    for used in range(1, 21):
        clock.advance(1)
        world.run(policy, way, "alice")
        told += [(used, event) for event in reached(heard)]
        heard.clear()
    assert told == [
        (16, BudgetReached("stripe", "alice", "quota", 0.8, 16, 20)),
        (19, BudgetReached("stripe", "alice", "quota", 0.95, 19, 20)),
    ]


TWENTY = [
    BudgetReached("stripe", "alice", "quota", 0.8, 16, 20),
    BudgetReached("stripe", "alice", "quota", 0.95, 19, 20),
]


def test_on_every_store_the_same_is_told(store, clock, heard):
    policy = Policy(quota="20/day", name="stripe", store=store)
    spend(policy, clock, 20, "alice")
    assert reached(heard) == TWENTY


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_on_every_store_the_same_is_told_to_tasks(store, backend, clock, heard):
    policy = Policy(quota="20/day", name="stripe", store=store)

    async def main():
        for _ in range(20):
            clock.advance(1)
            async with policy.aadmit("alice"):
                pass
        await store.aclose()

    anyio.run(main, backend=backend)
    assert reached(heard) == TWENTY


def test_what_is_passed_at_one_go_is_told_in_order(clock, heard):
    policy = Policy(quota="100/day", name="stripe", clock=clock)
    with policy.admit(cost=99):
        pass
    assert heard == [
        Reserved("stripe", "default", 99, 0.0),
        BudgetReached("stripe", "default", "quota", 0.8, 99, 100),
        BudgetReached("stripe", "default", "quota", 0.95, 99, 100),
        Departed("stripe", "default", 99, 0.0, 0.0),
    ]


def test_every_period_is_told_of_anew_and_every_key_apart(clock, heard):
    policy = Policy(quota="10/day", name="stripe", clock=clock)
    for _ in range(2):
        for key in ("alice", "bob"):
            spend(policy, clock, 9, key)
        clock.set(clock.now() // DAY_S * DAY_S + DAY_S)
    assert [(event.key, event.used) for event in reached(heard)] == [("alice", 8), ("bob", 8)] * 2


def test_what_falls_below_and_rises_again_is_told_once(clock, heard):
    policy = Policy(quota="10/day", name="stripe", clock=clock)
    for _ in range(3):
        clock.advance(1)
        with policy.admit(cost=8) as admission:
            pass
        admission.settle(0)
        clock.advance(1)
        policy.shaper.reserve().cancel()
    assert [event.used for event in reached(heard)] == [8]


def test_of_another_limit_the_shares_are_told_anew(clock, heard):
    policy = Policy(quota="10/day", name="stripe", clock=clock)
    spend(policy, clock, 9)
    policy.configure(quota="20/day", reason="paid more")
    spend(policy, clock, 11)
    assert [(event.share, event.used, event.limit) for event in reached(heard)] == [
        (0.8, 8, 10),
        (0.8, 16, 20),
        (0.95, 19, 20),
    ]


def test_a_rolling_quota_has_no_end_and_is_told_of_whenever_it_rises(clock, heard):
    policy = Policy(quota="10/rolling:1h", name="stripe", clock=clock)
    for _ in range(2):
        spend(policy, clock, 10)
        clock.advance(3_600)
    assert [(event.share, event.used) for event in reached(heard)] == [(0.8, 8), (0.95, 10)] * 2


def test_every_quota_is_told_by_its_name(clock, heard):
    gates = (all_of(hour=Quota("10/fixed:1h"), day=Quota("12/day")), Quota("100/month"))
    shaper = Shaper(gates=gates, name="stripe", clock=clock)
    for _ in range(10):
        clock.advance(1)
        shaper.schedule()
    assert [(event.quota, event.share, event.used) for event in reached(heard)] == [
        ("hour", 0.8, 8),
        ("hour", 0.95, 10),
        ("day", 0.8, 10),
    ]
    assert len(reached(heard)) == 3


def test_a_key_is_looked_at_once_a_second_while_somebody_listens(clock):
    store = Counting(clock)
    policy = Policy(quota="1000/day", name="stripe", store=store)
    spend(policy, clock, 3)
    assert store.looks == 0
    told = []
    with policy.listen(told.append):
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


def test_where_there_is_no_quota_nobody_looks(clock, heard):
    store = Counting(clock)
    spend(Policy("10/s", name="stripe", store=store), clock, 3)
    assert store.looks == 0
    assert len(heard) == 6


def test_who_is_refused_looks_too(clock, heard):
    """All of a budget may be used within the second of a look; the next who asks sees it."""
    policy = Policy(quota="10/day", name="stripe", clock=clock)
    for _ in range(10):
        policy.shaper.schedule()
    assert reached(heard) == []
    clock.advance(1)
    with suppress(QuotaExhaustedError):
        policy.shaper.schedule()
    assert [event.share for event in reached(heard)] == [0.8, 0.95]


def test_what_is_only_measured_is_told_too(world, clock, heard):
    policy = Policy(quota="10/day", name="stripe", enforce=False, clock=clock)
    world.run(policy, "admit", "alice", cost=8)
    assert [type(event) for event in heard] == [Measured, BudgetReached]


class Blind(MemoryStore):
    """A store that answers everything but looks."""

    def bind(self, name, program, operation):
        call = super().bind(name, program, operation)
        if operation != LOOK:
            return call

        def look(*args):
            raise StoreUnavailableError("gone")

        return look


def test_a_store_that_fails_a_look_hurts_no_call(world, clock, heard):
    for kind in (Blind, lambda clock: FaultyStore(Blind(clock))):
        policy = Policy(quota="10/day", name="stripe", store=kind(clock))
        for _ in range(3):
            clock.advance(1)
            world.run(policy, "admit", "alice", cost=3)
    assert [type(event) for event in heard] == [Reserved, Departed] * 6
    assert not any(isinstance(event, StoreFailed) for event in heard)


def test_who_is_interrupted_while_telling_gives_the_turn_back(clock):
    policy = Policy(quota="10/day", name="stripe", clock=clock)

    def interrupt(event):
        if isinstance(event, BudgetReached):
            raise KeyboardInterrupt

    with policy.listen(interrupt), pytest.raises(KeyboardInterrupt):
        policy.shaper.schedule(cost=9)
    assert policy.quotas()[0].used == 0


def test_of_many_keys_the_oldest_is_forgotten(clock, heard):
    policy = Policy(quota="10/day", name="stripe", clock=clock)
    for number in range(MOST_KEYS + 1):
        with policy.admit(f"key {number}", cost=8):
            pass
    clock.advance(1)
    for key in ("key 0", f"key {MOST_KEYS}"):
        with policy.admit(key):
            pass
    assert len(policy.shaper.core.budgets._keys) == MOST_KEYS
    assert [event.key for event in reached(heard)[-2:]] == [f"key {MOST_KEYS}", "key 0"]


def test_a_spent_budget_among_alternatives_is_told(clock, heard):
    either = first_of(main=Quota("5/day"), overflow=Quota("10/day"))
    shaper = Shaper(gates=(either,), name="stripe", clock=clock)
    for _ in range(5):
        clock.advance(1)
        shaper.schedule()
    assert [(event.quota, event.share) for event in reached(heard)] == [("main", 0.8), ("main", 0.95)]


def test_a_spread_budget_is_told_of_as_it_goes(heard):
    clock = ManualClock(autojump=True)
    policy = Policy(quota="20/day", spread=True, name="stripe", clock=clock)
    left_at = []
    with policy.listen(lambda event: isinstance(event, BudgetReached) and left_at.append(clock.now())):
        for _ in range(20):
            with policy.admit():
                pass
    # The slot is taken when the one before has left, and told of at once.
    assert left_at == [14 * DAY_S / 20, 17 * DAY_S / 20]
