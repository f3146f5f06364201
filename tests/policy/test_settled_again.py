"""A settlement is repeated until it is answered: it counts once, and the last one decides."""

import contextlib
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shapekit import Adaptive, ManualClock, MemoryStore, Policy, Quota, RedisStore, Shaper, SQLiteStore
from shapekit._runtime.drivers import run
from shapekit.algorithms.queue.wire import CANCEL, SETTLE
from shapekit.algorithms.quota import quotas_of
from shapekit.errors import StoreUnavailableError

from ..redis_server import shared_server

START_S = 1_000_000_000


@pytest.fixture(params=["memory", "SQLite", "Redis"])
def store(request, tmp_path):
    clock = ManualClock(START_S)
    if request.param == "memory":
        made = MemoryStore(clock=clock)
    elif request.param == "SQLite":
        made = SQLiteStore(tmp_path / "said.db", clock=clock)
    else:
        made = RedisStore.from_url(shared_server().url, clock=clock, prefix=f"said {request.node.name}")
    yield made
    made.reset_all("")
    made.close()


class Lossy:
    """Loses the answers of a store to settlements and cancellations on demand; the operations are done."""

    def __init__(self, store):
        self.loses = False
        bind = store.bind

        def lossy_bind(name, program, operation):
            apply = bind(name, program, operation)
            return partial(self._lose, apply) if operation in (SETTLE, CANCEL) else apply

        store.bind = lossy_bind

    def _lose(self, apply, key, *args):
        answer = apply(key, *args)
        if self.loses:
            raise StoreUnavailableError("the answer is lost")
        return answer


def used(policy):
    [budget] = policy.quotas()
    return budget.used


def made(store):
    return Policy("1000/s burst 100", quota="1_000/month", name="said", store=store)


def test_a_call_that_never_counted_is_given_back_once(store):
    policy = made(store)
    with policy.admit() as admission:
        reservation = admission.reservation
    for _ in range(5):
        with policy.admit():
            store.clock.advance(0.1)
    core = reservation.core
    for _ in range(7):
        run(core.settle, reservation, 0)
        run(core.cancel, reservation)
    assert used(policy) == 5


def test_a_settled_reservation_cannot_be_cancelled(store):
    shaper = Shaper("10/s", gates=(Quota("100/day"),), store=store, name="waits")
    reservations = [shaper.reserve() for _ in range(10)]
    assert shaper.settle(reservations[5], 0)
    assert not shaper.cancel(reservations[5])
    assert shaper.cancel(reservations[6])
    store.clock.advance(60)
    assert not shaper.settle(reservations[6], 0)
    [quota] = quotas_of(shaper.core.queue, *shaper.core.look.call("default"))
    assert quota.used == 8


def test_a_settlement_that_is_repeated_after_a_lost_answer_counts_once(store):
    lossy = Lossy(store)
    policy = made(store)
    with policy.admit(cost=4) as admission:
        lossy.loses = True
        for _ in range(5):
            with pytest.raises(StoreUnavailableError):
                admission.settle(9)
        lossy.loses = False
        assert admission.settle(9)
    assert used(policy) == 9


def test_a_settlement_that_arrives_late_changes_nothing(store):
    policy = made(store)
    with policy.admit(cost=4) as admission:
        grant = admission.reservation.grant
    settle = store.bind("said", policy.shaper.core.queue, SETTLE)
    follows = settle("default", (grant, 9, 1_001))
    assert follows
    assert settle("default", (grant, 0, 1_000)) == 0
    assert used(policy) == 9
    assert settle("default", (grant, 9, 1_001)) == follows
    assert settle("default", (grant, 7, 2**50)) > follows
    assert used(policy) == 7


words = st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=8)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(words, min_size=1, max_size=4), order=st.randoms(use_true_random=False))
def test_the_last_of_several_settlements_counts(store, calls, order):
    lossy = Lossy(store)
    policy = made(store)
    policy.shaper.reset()
    settlements = [(number, word) for number, own in enumerate(calls) for word in own]
    order.shuffle(settlements)
    admissions = []
    for _ in calls:
        with policy.admit(cost=3) as admission:
            admissions.append(admission)
        store.clock.advance(1)
    costs = [3] * len(calls)
    for number, (actual, is_lost) in settlements:
        lossy.loses = is_lost
        with contextlib.suppress(StoreUnavailableError):
            admissions[number].settle(actual)
        costs[number] = actual
        lossy.loses = False
        assert used(policy) == sum(costs)


@pytest.mark.parametrize(
    "limit", [{"rate": "1/h"}, {"adaptive": Adaptive("1/h", "2/h")}], ids=["even", "adaptive"]
)
def test_after_any_debt_a_call_gets_a_slot_even_if_a_late_one(store, limit):
    shaper = Shaper(**limit, store=store, name="deep")
    assert shaper.settle(shaper.reserve(), 10**9)
    late = shaper.reserve()
    assert late.accepted
    assert late.delay > 50 * 365 * 86_400
    assert not shaper.reserve(max_wait=3_600)
