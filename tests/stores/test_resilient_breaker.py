"""The breaker: only one prober at a time calls a lost store, less and less often; a loss is logged once."""

import logging
import random
import threading
import time
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shapekit import GCRA, Gate, MemoryStore, StoreUnavailableError
from shapekit.stores.base import DamagedStateError
from shapekit.stores.resilient import FIRST_BACK_OFF_US, LONGEST_BACK_OFF_US, Breaker, ResilientStore
from shapekit.testing import ManualClock

from .outages import PATIENCE_S, Host

PATIENCE_US = 500_000


class BreakerMachine(RuleBasedStateMachine):
    """Callers that come, fail, are answered, are interrupted or never return, against a plain model."""

    def __init__(self):
        super().__init__()
        self.clock = ManualClock(1_000.0)
        self.jitter = 0.0
        self.breaker = Breaker(self.clock, lambda: "it", PATIENCE_US)
        self.breaker._jitter = lambda: self.jitter
        self.messages = []
        self.handler = logging.Handler()
        self.handler.emit = lambda record: self.messages.append(record.getMessage())
        logging.getLogger("shapekit.store").addHandler(self.handler)
        logging.getLogger("shapekit.store").propagate = False
        self.under_way = []
        self.term = 0
        self.is_open = False
        self.back_off = 0
        self.due = 0
        self.switches = 0

    def teardown(self):
        logging.getLogger("shapekit.store").removeHandler(self.handler)
        logging.getLogger("shapekit.store").propagate = True

    @rule()
    def somebody_comes(self):
        asked_in = self.breaker.term()
        now = self.clock.now_us()
        assert (asked_in is not None) == (not self.is_open or now >= self.due)
        if asked_in is None:
            return
        if self.is_open:
            self.term += 1
            self.due = now + max(2 * PATIENCE_US, self.back_off)
        self.under_way.append((self.term, asked_in))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), jitter=st.floats(0, 1, exclude_max=True))
    def somebody_fails(self, data, jitter):
        term, asked_in = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.jitter = jitter
        self.breaker.lost(asked_in, StoreUnavailableError("gone"))
        if term != self.term:
            return
        self.term += 1
        if self.is_open:
            self.back_off = min(2 * self.back_off, LONGEST_BACK_OFF_US)
        else:
            self.back_off = FIRST_BACK_OFF_US
            self.switches += 1
        self.is_open = True
        wait = self.breaker.probe_in_us()
        assert self.back_off / 2 <= wait <= self.back_off <= LONGEST_BACK_OFF_US
        self.due = self.clock.now_us() + wait

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def somebody_is_answered(self, data):
        term, asked_in = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.breaker.answered(asked_in)
        if self.is_open and term == self.term:
            self.is_open = False
            self.switches += 1

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def somebody_is_interrupted(self, data):
        term, asked_in = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.breaker.undecided(asked_in)
        if self.is_open and term == self.term:
            self.due = self.clock.now_us()

    @rule(seconds=st.sampled_from([0.001, 0.1, 0.25, 1.0, 10.0]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)

    @invariant()
    def it_is_as_in_the_model(self):
        assert self.breaker.is_open == self.is_open
        assert len(self.messages) == self.switches
        assert [("lost" in text, "back" in text) for text in self.messages] == [
            (n % 2 == 0, n % 2 == 1) for n in range(self.switches)
        ]


TestBreaker = BreakerMachine.TestCase
TestBreaker.settings = settings(max_examples=150, stateful_step_count=40)


def test_a_clock_that_was_put_back_does_not_delay_the_probe():
    clock = ManualClock(1_000.0)
    breaker = Breaker(clock, lambda: "it", PATIENCE_US)
    breaker.lost(breaker.term(), StoreUnavailableError("gone"))
    assert breaker.term() is None
    clock.set(10.0)
    assert breaker.term() is not None


class Moody(MemoryStore):
    """A store whose next calls raise these errors."""

    moods = ()

    def bind(self, name, program, operation):
        apply = super().bind(name, program, operation)

        def ask(key, *args):
            if self.moods and (error := self.moods.pop()):
                raise error
            return apply(key, *args)

        return ask


@pytest.mark.parametrize(
    ("error", "is_lost", "is_lost_then"),
    [
        (None, False, False),
        (DamagedStateError("it is none"), False, False),
        (StoreUnavailableError("gone"), True, True),
        (KeyboardInterrupt(), True, False),
    ],
    ids=lambda case: type(case).__name__,
)
def test_a_damaged_state_is_an_answer_and_after_an_interrupted_probe_the_next_call_probes(
    error, is_lost, is_lost_then
):
    clock = ManualClock(1_000.0)
    primary = Moody(clock)
    store = ResilientStore(primary, on_outage="open")
    gate = Gate(GCRA("10/s"), store=store, name="gate")
    primary.moods = [StoreUnavailableError("gone")]
    assert gate.check()
    assert store.is_lost
    clock.advance(LONGEST_BACK_OFF_US / 1e6)
    primary.moods = [error]
    with suppress(KeyboardInterrupt):
        assert gate.check()
    assert store.is_lost is is_lost
    assert gate.check()
    assert store.is_lost is is_lost_then


def test_exactly_one_of_many_threads_probes_and_the_others_do_not_wait_for_it():
    host = Host()
    store = host.worker("open")
    gate = Gate(GCRA("10/s"), store=store, name="gate")
    host.faulty.down = True
    gate.check()
    assert (store.is_lost, host.faulty.calls) == (True, 1)
    host.faulty.down = False
    host.faulty.slow = 3_600  # on a clock that stands still: the probe hangs until the store is mended
    host.clock.advance(1)
    together = threading.Barrier(8)
    answered = threading.Semaphore(0)
    admitted = []

    def call():
        together.wait(PATIENCE_S)
        admitted.append(gate.check().allowed)
        answered.release()

    crew = [threading.Thread(target=call, daemon=True) for _ in range(8)]
    for thread in crew:
        thread.start()
    for _ in range(7):
        assert answered.acquire(timeout=PATIENCE_S)
    # The probe is on its way on a thread of the store's, which may not have run yet.
    gives_up = time.monotonic() + PATIENCE_S
    while host.faulty.calls < 2:
        assert time.monotonic() < gives_up
        time.sleep(0.001)
    assert (host.faulty.calls, store.is_lost) == (2, True)
    host.faulty.mend()
    for thread in crew:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert (host.faulty.calls, store.is_lost) == (2, False)
    assert admitted == [True] * 8
    store.close()


@pytest.mark.parametrize("mode", ["open", "closed", "local"])
def test_a_lost_store_is_probed_after_the_back_off_and_then_less_and_less(mode):
    host = Host()
    gate = Gate(GCRA("10/s"), store=host.worker(mode), name="gate")
    host.faulty.down = True
    probes = []
    for step in range(12_000):
        before = host.faulty.calls
        gate.check()
        if host.faulty.calls > before:
            probes.append(step * 10_000)
        host.clock.advance(0.01)
    gaps = [later - sooner for sooner, later in pairwise(probes)]
    back_off = FIRST_BACK_OFF_US
    for gap in gaps:
        assert back_off / 2 <= gap <= back_off + 10_000
        back_off = min(2 * back_off, LONGEST_BACK_OFF_US)
    assert 12 <= len(gaps) <= 30


def test_workers_do_not_probe_in_step():
    random.seed(1)
    host = Host()
    stores = [host.worker("open") for _ in range(8)]
    host.faulty.down = True
    for store in stores:
        Gate(GCRA("10/s"), store=store, name="gate").check()
    assert len({store._whole.breaker.probe_in_us() for store in stores}) == 8


def test_a_loss_and_a_return_of_the_store_are_logged_once_each(caplog):
    host = Host()
    store = host.worker("open")
    gate = Gate(GCRA("10/s"), store=store, name="gate")
    gate.check()
    host.faulty.down = True
    for _ in range(40):
        gate.check()
        host.clock.advance(0.1)
    host.recover()
    for _ in range(5):
        gate.check()
    assert [(r.name, r.levelname) for r in caplog.records] == [("shapekit.store", "WARNING")] * 2
    lost, back = (record.getMessage() for record in caplog.records)
    assert lost.startswith("lost FaultyStore(")
    assert "this FaultyStore is down" in lost
    assert back.endswith("is back after 14 s")
