"""A charge is given back once on every store, whichever worker repeats it how often, and for any receipt."""

import math

import pytest

from shapekit import (
    GCRA,
    ConfigError,
    FixedWindow,
    Gate,
    ManualClock,
    MemoryStore,
    Quota,
    RedisStore,
    SlidingWindow,
    SlidingWindowLog,
    SQLiteStore,
    all_of,
    any_of,
    first_of,
)
from shapekit.algorithms.base import CHECK
from shapekit.algorithms.ledger import Ledger

from ..redis_server import shared_server

LIMITS = {
    "gcra": GCRA("7 per 10 s", burst=6),
    "fixed_window": FixedWindow(6, "10s"),
    "sliding_window": SlidingWindow(6, "10s"),
    "sliding_log": SlidingWindowLog(6, "10s"),
    "quota": Quota("6/day"),
    "quota, spread": Quota("6/day", spread=True),
    "all_of": all_of(a=GCRA("1/h", burst=6), b=FixedWindow(7, "1h")),
    "any_of": any_of(a=FixedWindow(6, "1h"), b=SlidingWindow(3, "1h")),
    "first_of": first_of(a=FixedWindow(8, "1h"), b=SlidingWindowLog(6, "1h")),
}


@pytest.fixture(params=["memory", "sqlite", "redis"])
def workers(request, tmp_path):
    """Makes two gates of one limit that share a store, as two processes do, and their clock."""
    clock, opened = ManualClock(1_000_000.0), []

    def store():
        if request.param == "memory":
            return opened[0] if opened else MemoryStore(clock)
        if request.param == "sqlite":
            return SQLiteStore(tmp_path / "limits.db", clock=clock)
        return RedisStore.from_url(shared_server().url, clock=clock, prefix=request.node.name)

    def make(limit):
        while len(opened) < 2:
            opened.append(store())
        return [Gate(limit, store=one, name="api") for one in opened], clock

    yield make
    for one in opened:
        one.close()


def standing(gate):
    return gate.peek(), gate.forecast()


@pytest.mark.parametrize("name", LIMITS)
def test_a_refund_repeated_by_another_worker_or_for_more_changes_nothing(workers, name):
    (one, other), clock = workers(LIMITS[name])
    first = one.check(cost=2)
    clock.advance(0.5)
    second = other.check()
    one.refund("default", first, cost=2)
    expected = standing(one)
    for gate in (one, other):
        for cost in (1, 2, gate.strategy.max_cost):
            assert gate.refund("default", first, cost=cost) == expected[0]
            assert standing(gate) == expected
    if second:
        other.refund("default", second)
        empty = standing(other)
        assert one.refund("default", second) == empty[0]
        assert standing(one) == empty
        assert empty[0].current == 0


@pytest.mark.parametrize("name", LIMITS)
def test_a_repeated_debit_that_names_a_charge_changes_nothing(workers, name):
    (one, other), _ = workers(LIMITS[name])
    first = one.check(cost=2)
    one.debit("default", first, cost=3)
    expected = standing(one)
    assert other.debit("default", first, cost=3) == expected[0]
    assert standing(other) == expected
    one.debit("default", cost=1)
    anonymous = standing(one)
    assert anonymous != expected
    other.debit("default", cost=1)
    assert standing(other) != anonymous


@pytest.mark.parametrize("name", LIMITS)
def test_a_decision_from_before_a_reset_gives_nothing_back(workers, name):
    (one, other), clock = workers(LIMITS[name])
    before = one.check(cost=2)
    other.reset()
    clock.advance(0.000_001)
    other.check(cost=2)
    expected = standing(one)
    assert one.refund("default", before, cost=2) == expected[0]
    assert standing(one) == expected


def forgeries(receipt):
    """Receipts that no gate has made, near to one that it has."""
    if not isinstance(receipt[0], int):
        yield from (tuple(parts) for parts in zip(*map(forgeries, filter(None, receipt)), strict=True))
        return
    for place, strange in (
        *((place, strange) for place in range(3) for strange in (-1, -3, 0, 2**53, 2**60, 10**400, 1.5)),
        *((place, strange) for place in range(4) for strange in (math.nan, math.inf, None, "1", True, ())),
        (1, receipt[1] + 1),
        (2, receipt[2] + 10),
    ):
        yield (*receipt[:place], strange, *receipt[place + 1 :])
    yield from ((), receipt[:3], (*receipt, 1), receipt[3], None, "receipt", [*receipt])


@pytest.mark.parametrize("name", ["gcra", "fixed_window", "quota, spread", "all_of"])
def test_a_receipt_that_no_gate_has_made_is_refused_or_does_nothing(workers, name):
    (one, _), _ = workers(LIMITS[name])
    first = one.check(cost=2)
    expected = standing(one)
    for receipt in forgeries(first.receipt):
        forged = first._replace(receipt=receipt)
        try:
            one.refund("default", forged, cost=2)
        except ConfigError as error:
            assert error.field == "decision"  # noqa: PT017 - either is fine
        assert standing(one) == expected, receipt


def test_the_charge_of_a_cancelled_caller_is_given_back_once(workers):
    (one, other), _ = workers(LIMITS["fixed_window"])
    first = one.check(cost=2)
    [(operation, args)] = CHECK.undone((2,), first)
    for gate in (one, other, one):
        gate._store.bind("api", Ledger(one.strategy), operation)("default", *args)
        assert gate.peek().current == 0
        assert gate.refund("default", first, cost=2).current == 0
    one.check(cost=3)
    assert other.refund("default", first, cost=2).current == 3
