"""What becomes of calls in flight and of new ones while the store is gone, and when it is back."""

import pytest

from shapekit import ManualClock, MemoryStore, Policy, QueueFullError, StoreUnavailableError
from shapekit._runtime.drivers import Twin
from shapekit.stores.resilient import LONGEST_BACK_OFF_US, ResilientStore
from shapekit.testing import FaultyStore

from .rooms import PATIENCE_S, standing

RECOVERY_S = LONGEST_BACK_OFF_US / 1e6


class Worker:
    """A policy of four permits on a store that can be lost."""

    def __init__(self, mode, share=None):
        self.clock = ManualClock(1_000.0)
        self.truth = MemoryStore(self.clock)
        self.faulty = FaultyStore(self.truth)
        store = ResilientStore(self.faulty, on_outage=mode, share=share, timeout=PATIENCE_S)
        self.policy = Policy(concurrency=4, name="api", store=store, max_wait=0)
        self.witness = Policy(concurrency=4, name="api", store=self.truth, max_wait=0)

    def recover(self):
        self.faulty.mend()
        self.clock.advance(RECOVERY_S)

    def enter(self):
        return self.policy.admit().__enter__()


def test_open_admits_every_call_uncounted():
    worker = Worker("open")
    before = [worker.enter() for _ in range(4)]
    worker.faulty.down = True
    during = [worker.enter() for _ in range(10)]
    assert all(admission.holds_permit for admission in during)
    worker.recover()
    assert standing(worker.witness) == (4, 0)
    for admission in (*during, *before):
        admission.leave()
    assert standing(worker.witness) == (0, 0)


def test_closed_refuses_and_raise_raises():
    for mode, error in (("closed", QueueFullError), ("raise", StoreUnavailableError)):
        worker = Worker(mode)
        before = [worker.enter() for _ in range(2)]
        worker.faulty.down = True
        with pytest.raises(error):
            worker.enter()
        before.pop().leave()
        worker.recover()
        # The next call tells the store which calls are over.
        worker.enter().leave()
        assert standing(worker.witness) == (1, 0)
        before.pop().leave()
        assert standing(worker.witness) == (0, 0)


def test_local_goes_on_with_a_share():
    worker = Worker("local", share=0.5)
    before = [worker.enter() for _ in range(4)]
    worker.faulty.down = True
    during = [worker.enter() for _ in range(2)]
    with pytest.raises(QueueFullError, match="calls are in flight"):
        worker.enter()
    during.pop().leave()
    during.append(worker.enter())
    worker.recover()
    # The bound: those in flight at the switch come on top.
    assert standing(worker.witness) == (4, 0)
    with pytest.raises(QueueFullError):
        worker.enter()
    for admission in (*before, *during):
        admission.leave()
    assert standing(worker.witness) == (0, 0)
    worker.faulty.down = True
    worker.enter().leave()


@pytest.mark.parametrize("mode", ["closed", "local"])
def test_a_call_that_is_refused_because_its_reply_was_lost_keeps_no_permit(mode):
    worker = Worker(mode, share=0.25 if mode == "local" else None)
    during = []
    if mode == "local":
        worker.faulty.down = True
        during.append(worker.enter())
        worker.recover()
        worker.enter().leave()
    worker.faulty.loses_replies = True
    with pytest.raises(QueueFullError):
        worker.enter()
    assert standing(worker.witness) == (1, 0)
    worker.recover()
    worker.enter().leave()
    assert standing(worker.witness) == (0, 0)
    for admission in during:
        admission.leave()


def test_a_share_of_few_permits_is_one():
    worker = Worker("local", share=0.01)
    worker.faulty.down = True
    only = worker.enter()
    with pytest.raises(QueueFullError):
        worker.enter()
    only.leave()
    worker.enter()


@pytest.mark.parametrize("mode", ["open", "local"])
def test_calls_that_wait_when_the_store_is_lost_go_on_by_the_outage_mode(mode):
    clock = ManualClock(1_000.0, autojump=True)
    truth = MemoryStore(clock)
    faulty = FaultyStore(truth)
    share = 0.5 if mode == "local" else None
    store = ResilientStore(faulty, on_outage=mode, share=share, timeout=PATIENCE_S)
    mine = Policy(concurrency=1, name="api", store=store)
    theirs = Policy(concurrency=1, name="api", store=truth)
    with theirs.admit():
        # The call waits, looks, finds the store gone, and asks again where the answers come from now.
        watch = mine.permits._watch

        def look(*args):
            faulty.down = True
            return watch.call(*args)

        mine.permits._watch = Twin(look, watch.acall)
        with mine.admit(timeout=60) as admission:
            assert admission.holds_permit
            assert admission.delay >= 0.03
    assert standing(theirs) == (1, 0), "a permit for the place in the queue that was not given back"
    faulty.mend()
    clock.advance(RECOVERY_S)
    with mine.admit(max_wait=0):
        assert standing(theirs) == (1, 0)
    assert standing(theirs) == (0, 0)
