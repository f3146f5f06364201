"""Many slots at once while a store is gone: each mode answers as it answers for one after the other."""

import pytest

from shapekit import ManualClock, MemoryStore, ResilientStore
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL_MANY, CONFIRM, LOOK, RESERVE, RESERVE_MANY
from shapekit.errors import StoreUnavailableError
from shapekit.testing import FaultyStore
from shapekit.testing.timelines import queue

CALLS = ((1, None, 5), (3, None, 6), (1, 0, 7))
FURTHER = (4, 10_000_000, 8)


class Bench:
    def __init__(self, mode, **options):
        self.clock = ManualClock(1_000.0)
        self.inner = FaultyStore(MemoryStore(self.clock))
        self.store = ResilientStore(self.inner, on_outage=mode, **options)
        self.queue = queue("10/s burst 2")

    def ask(self, operation, *args):
        return self.store.bind("name", self.queue, operation)("key", *args)


def test_open_gives_every_call_a_slot_at_once_and_none_further():
    bench = Bench("open")
    bench.inner.down = True
    standing, granted = bench.ask(RESERVE_MANY, CALLS, FURTHER)
    assert standing == (-1, 0, 0, bench.clock.now_us(), 0)
    assert [one[:2] for one in granted] == [(True, 0)] * 3
    assert bench.ask(CANCEL_MANY, tuple(Grant(*one) for one in granted)) == 0


def test_closed_refuses_every_call_and_gives_no_further_slots():
    bench = Bench("closed")
    bench.inner.down = True
    _, granted = bench.ask(RESERVE_MANY, CALLS, FURTHER)
    assert [one[0] for one in granted] == [False] * 3
    assert {one[1] for one in granted} == {bench.ask(RESERVE, CALLS[0])[1]}


def test_raise_raises():
    bench = Bench("raise")
    bench.inner.down = True
    with pytest.raises(StoreUnavailableError):
        bench.ask(RESERVE_MANY, CALLS, FURTHER)


def test_local_gives_what_its_share_has_and_refuses_what_that_never_admits():
    """Half of the gate admits one unit at once: three are too much for it; later calls still get slots."""
    options = {"on_outage": "local", "share": 1 / 2}
    bench = Bench(options.pop("on_outage"), **options)
    bench.inner.down = True
    standing, granted = bench.ask(RESERVE_MANY, CALLS, FURTHER)
    one_by_one = Bench("local", share=1 / 2)
    one_by_one.inner.down = True
    expected = [one_by_one.ask(RESERVE, call) for call in CALLS]
    assert [one[:6] for one in granted[:3]] == [one[:6] for one in expected]
    assert len(granted) == 3 + FURTHER[0]
    assert standing[0] == granted[0][6] < -1


@pytest.mark.parametrize("mode", ["raise", "open", "closed", "local"])
def test_slots_of_a_store_that_is_gone_are_not_given_back_before_its_return(mode):
    """The error says so, or a worker that prefetches would not give them back later."""
    bench = Bench(mode, **({"share": 1 / 2} if mode == "local" else {}))
    _, before = bench.ask(RESERVE_MANY, (), FURTHER)
    bench.inner.down = True
    for _ in range(2):  # the call that loses the store, and one that does not ask it
        with pytest.raises(StoreUnavailableError):
            bench.ask(CANCEL_MANY, before)
    bench.inner.mend()
    bench.clock.advance(0.25)
    assert bench.ask(CANCEL_MANY, before) == len(before)


def test_slots_go_back_where_they_were_taken():
    """Slots of the outage go back to the local side, and earlier ones to the store once it is back."""
    bench = Bench("local", share=1 / 2)
    _, before = bench.ask(RESERVE_MANY, (), FURTHER)
    bench.inner.down = True
    _, local = bench.ask(RESERVE_MANY, (), FURTHER)
    assert bench.ask(CANCEL_MANY, tuple(Grant(*one) for one in local)) == len(local)
    assert bench.ask(RESERVE_MANY, (), FURTHER)[1][0][1] == local[0][1]
    bench.inner.mend()
    bench.clock.advance(11)
    bench.ask(CONFIRM)
    tail = bench.ask(LOOK)[0][0]
    assert bench.ask(CANCEL_MANY, tuple(Grant(*one) for one in before)) == len(before)
    assert bench.ask(LOOK)[0][0] <= tail


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_each_of_several_keys_gets_its_own_answer(mode):
    bench = Bench(mode)
    bench.inner.down = True
    many = bench.store.bind_many("name", bench.queue, RESERVE_MANY)
    one, other = many(["one", "other"], (CALLS, FURTHER))
    assert [granted[:2] for granted in one[1]] == [granted[:2] for granted in other[1]]
