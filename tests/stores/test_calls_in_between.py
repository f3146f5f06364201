"""A finalizer or a signal handler that calls shapekit in the midst of a call of the same thread: neither call
hangs, and each counts exactly once, wherever the one comes into the other.
"""

import os
import sys
import threading
from functools import partial
from itertools import count

import pytest

from shapekit import (
    FixedWindow,
    Gate,
    ManualClock,
    MemoryStore,
    Policy,
    Shaper,
    StoreUnavailableError,
    all_of,
    listen,
)
from shapekit._runtime import process
from shapekit.stores.sqlite import SQLiteStore
from shapekit.testing import FaultyStore

from .interrupts import CalledInBetween

DAY = FixedWindow("1000000/day")
BOTH = {"user": "a", "total": "b"}
SLOTS_PER_S = 10
LEAST = 10 if sys.version_info < (3, 12) else 4
"""How many places there are at least: later releases of Python run signal handlers in fewer."""


class World:
    """Limits of each kind on one store, and how many calls each has had."""

    def __init__(self):
        self.clock = ManualClock(1_000.0, autojump=True)
        self.store = MemoryStore(self.clock)
        self.gate = Gate(DAY, name="gate", store=self.store)
        self.apart = Gate(all_of(user=DAY, total=DAY), name="apart", store=self.store)
        self.shaper = Shaper(f"{SLOTS_PER_S}/s", name="shaper", store=self.store)
        self.policy = Policy(
            "1000/s", burst=1_000, quota="1000000/day", concurrency=2, name="policy", store=self.store
        )
        self.had = dict.fromkeys(("gate", "apart", "slots", "policy"), 0)

    def check(self):
        self.had["gate"] += 1
        assert self.gate.check("a")

    def check_many(self):
        self.had["gate"] += 2
        assert all(self.gate.check_many(["a", "a"]))

    def check_apart(self):
        self.had["apart"] += 1
        assert self.apart.check(BOTH)

    def reserve(self):
        self.had["slots"] += 1
        assert self.shaper.reserve("a")

    def cancel(self):
        slot = self.shaper.reserve("cancelled")
        assert slot.cancel()

    def admit(self):
        self.had["policy"] += 1
        with self.policy.admit("a", max_wait=0):
            """It is in flight."""

    def hold(self):
        self.shaper.hold("1s", key="held")
        self.shaper.resume(key="held")

    def look(self):
        assert len(list(self.store.keys())) <= len(self.store)
        listen(self.had.get).close()

    def reset(self):
        self.gate.reset("other")
        self.store.reset_all("other")

    def configure(self):
        self.policy.configure("1000/s", key="other")

    def everything(self):
        for call in (self.check, self.check_apart, self.reserve, self.admit, self.look):
            call()

    def is_as_it_should_be(self):
        seen = {
            "gate": self.gate.peek("a").current,
            "apart": self.apart.peek(BOTH).current,
            "slots": round((self.shaper.reserve("a").departs_at - 1_000) * SLOTS_PER_S),
            "policy": self.policy.quotas("a")[0].used,
        }
        assert seen == self.had
        with self.policy.admit("a", max_wait=0), self.policy.admit("a", max_wait=0):
            """No permit is lost."""
        self.is_swept_in_time()

    def is_swept_in_time(self):
        for _ in range(20):
            self.clock.advance(86_400)
            self.gate.check("sweeper")
        assert len(self.store) == 1


CALLS = (
    "check",
    "check_many",
    "check_apart",
    "reserve",
    "cancel",
    "admit",
    "hold",
    "look",
    "reset",
)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("name", [*CALLS, pytest.param("configure", marks=pytest.mark.long)])
def test_both_calls_count_once(name, is_known, step):
    for at in count(1, step):  # pragma: no branch
        world = World()
        if is_known:
            world.everything()
        with CalledInBetween(world.everything, at) as inner:
            getattr(world, name)()
        if inner.where is None:
            break
        try:
            world.is_as_it_should_be()
        except BaseException as error:
            raise AssertionError(f"after a call in between at {inner.where}") from error
    assert at > LEAST


@pytest.mark.parametrize("name", ["check", "everything"])
def test_a_call_during_a_reset_of_all_leaves_nothing_that_is_never_swept(name):
    for at in count(1):  # pragma: no branch
        world = World()
        world.everything()
        with CalledInBetween(getattr(world, name), at) as inner:
            world.store._forget_all()
        if inner.where is None:
            break
        world.check()
        try:
            world.is_swept_in_time()
        except AssertionError as error:
            raise AssertionError(f"after a call in between at {inner.where}") from error
    assert at > LEAST


def test_sqlite_refuses_the_inner_call_at_once_and_the_outer_one_counts(tmp_path):
    gate = Gate(DAY, name="gate", store=SQLiteStore(tmp_path / "limits.db", clock=ManualClock()))
    assert gate.check("a").current == 1
    total, refused = 1, 0

    def inner():
        nonlocal total, refused
        try:
            gate.check("a")
            total += 1
        except StoreUnavailableError:
            refused += 1

    for at in count(1):  # pragma: no branch
        with CalledInBetween(inner, at) as between:
            gate.check("a")
        total += 1
        assert gate.peek("a").current == total, f"after a call in between at {between.where}"
        if between.where is None:
            break
    assert 10 < refused < at - LEAST


def test_a_fork_in_between_raises_or_counts_and_the_next_call_counts(tmp_path):
    gate = Gate(DAY, name="gate", store=SQLiteStore(tmp_path / "limits.db", clock=ManualClock()))
    assert gate.check("a").current == 1
    total, errors = 1, []

    def fork():
        if (child := os.fork()) == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    for at in count(1):  # pragma: no branch
        with CalledInBetween(fork, at) as between:
            try:
                may_be = [gate.check("a").current]
            except StoreUnavailableError as error:
                errors.append(str(error))
                may_be = [total, total + 1]
        now = gate.peek("a").current
        assert now in may_be, between.where
        total = now
        if between.where is None:
            break
    assert all("was let go while this thread used it" in message for message in errors)
    assert 10 < len(errors) < at - LEAST


def reserve(shaper, slots):
    slots.append(shaper.reserve())


def test_a_prefetched_slot_is_handed_out_once():
    for at in count(1):  # pragma: no branch
        clock = ManualClock(1_000.0, autojump=True)
        shaper = Shaper("10/s", name="far", store=FaultyStore(MemoryStore(clock)), prefetch="1s")
        slots = [shaper.reserve() for _ in range(3)]
        with CalledInBetween(partial(reserve, shaper, slots), at) as between:
            reserve(shaper, slots)
        assert len({slot.departs_at for slot in slots}) == len(slots)
        shaper.close()
        if between.where is None:
            break
    assert at > 10


def test_a_thread_may_fork_while_it_holds_a_lock():
    lock = process.lock()
    with lock:
        child = os.fork()
        is_child = not child
    if is_child:
        # As in the parent: it was released once, and any thread may have it.
        taken = []
        asker = threading.Thread(target=lambda: taken.append(lock.acquire(timeout=5)))
        asker.start()
        asker.join()
        os._exit(0 if taken == [True] else 1)
    assert os.waitpid(child, 0)[1] == 0
