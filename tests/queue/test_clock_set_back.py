"""The date of the store's server is set back: calls wait as much longer, unless that ends before."""

import pytest

from shapekit import ManualClock, Shaper
from shapekit._queue.moving import JITTER, LONGEST_US
from shapekit.rate import SECOND_US

from .slow_store import FarStore
from .stage import Stage

HOUR = 3_600
ENDS_S = 60
CALLS = 5
NOTICED_S = LONGEST_US * (JITTER + 1) / JITTER / SECOND_US
"""How long it takes at most until a call that waits for so long asks again."""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("how", ["reset", "set right"])
def test_calls_wait_no_longer_once_the_key_is_reset_or_the_date_set_right(monkeypatch, how, backend):
    clock = ManualClock(10_000.0, autojump=True)
    monkeypatch.setattr(FarStore, "ahead_s", HOUR)
    shaper = Shaper("1/s", store=FarStore(clock, 0.01), name="api")
    stage = Stage(backend, clock)
    for number in range(CALLS):
        # One after another, as trio starts what is woken at once in any order.
        stage.wait_for(shaper, number, at=number / 1_000)
    stage.at(0.5, lambda: monkeypatch.setattr(FarStore, "ahead_s", 0))
    if how == "reset":
        stage.at(ENDS_S, shaper.areset)
    else:
        stage.at(ENDS_S, lambda: monkeypatch.setattr(FarStore, "ahead_s", HOUR))
    stage.run()
    assert stage.names == list(range(CALLS))
    assert ENDS_S < stage.times[1] < ENDS_S + NOTICED_S + 1
    for earlier, later in zip(stage.times[1:], stage.times[2:], strict=False):
        assert later - earlier == pytest.approx(1, abs=0.02)
