"""A signal handler that raises while a call waits for a part of the server: no call is stuck behind it."""

import pytest

from shapekit import ManualClock, MemoryStore, Policy
from shapekit._runtime.drivers import run
from shapekit.keys import Target
from tests.stores.interrupts import Interrupt

from ..slow_store import SlowStore

TARGET = Target("GET", "https", "api.x", None, "/search")


@pytest.mark.parametrize("store_of", [MemoryStore, lambda clock: SlowStore(clock, 0.004)])
def test_a_call_that_is_interrupted_anywhere_waits_in_no_queue(store_of):
    for at in range(1, 3_000):
        policy = Policy("100/s", name="api", store=store_of(ManualClock(1_000.0, autojump=True)))
        scoped = policy.scoped
        scoped.scopes.learn("default", TARGET, "search")
        run(scoped.hold, 0.5, "default", "search")
        with Interrupt(at) as interrupt:
            try:
                run(scoped.schedule, "default", TARGET, 1)
            except KeyboardInterrupt:
                """It was interrupted."""
        if interrupt.where is None:
            break
        assert not scoped._lines._lines, f"after an interruption on the {interrupt.where}"
    assert 100 < at < 2_999
