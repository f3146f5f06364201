"""Shapers that go without a word: whoever listened to them makes nobody slower any more."""

import gc

import pytest

from shapekit import Shaper
from shapekit._runtime.process import SWITCH
from shapekit.events import EVERYWHERE

from ..crew import held_elsewhere


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "dropped"])
def test_a_shaper_that_is_collected_is_listened_to_no_more(is_kept):
    """Whatever lock is held at that moment: those who listen to other shapers come and go meanwhile."""
    heard = []
    other = Shaper("1/s")
    with other.listen(heard.append):
        shaper = Shaper("1/s")
        kept = [shaper.listen(heard.append), shaper.listen(heard.append)]
        if not is_kept:
            del kept
        assert len(SWITCH.loud) == 2
        with held_elsewhere(other.core.reporter.listeners._lock, EVERYWHERE._lock):
            del shaper
            gc.collect()
            assert len(SWITCH.loud) == 1
        other.reserve()
        assert len(heard) == 1
        if is_kept:
            kept[0].close()
        assert len(SWITCH.loud) == 1
    assert not SWITCH.loud
