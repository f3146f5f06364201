"""Shapers that are collected without being closed: their listeners slow no other call."""

import gc

import pytest

from shapekit import Shaper
from shapekit._runtime.process import SWITCH
from shapekit.events import EVERYWHERE

from ..crew import held_elsewhere


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "dropped"])
def test_a_collected_shaper_has_no_listeners_left(is_kept):
    """Collection works whatever lock is held at that moment: other listeners come and go meanwhile."""
    recorded = []
    other = Shaper("1/s")
    with other.listen(recorded.append):
        shaper = Shaper("1/s")
        kept = [shaper.listen(recorded.append), shaper.listen(recorded.append)]
        if not is_kept:
            del kept
        assert len(SWITCH.loud) == 2
        with held_elsewhere(other.core.reporter.listeners._lock, EVERYWHERE._lock):
            del shaper
            gc.collect()
            assert len(SWITCH.loud) == 1
        other.reserve()
        assert len(recorded) == 1
        if is_kept:
            kept[0].close()
        assert len(SWITCH.loud) == 1
    assert not SWITCH.loud
