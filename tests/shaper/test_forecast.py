"""A forecast is what would happen; it takes nothing."""

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, Shaper

from ..algorithms.queue.follower import SECOND, Follower
from ..algorithms.queue.setups import ALIGNED, ALWAYS

PLAIN = {"plain": (("10/s",), {}, []), "burst": (("7/s",), {"burst": 4}, [])}
SETUPS = PLAIN | ALWAYS | ALIGNED
stories = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 8), st.sampled_from(["", "", "cancel", "hold"])), max_size=10
)


@settings(max_examples=200)
@given(st.sampled_from(sorted(SETUPS)), stories, st.integers(1, 15))
def test_a_forecast_is_what_happens_if_it_is_done(name, story, calls):
    args, options, _ = SETUPS[name]
    follower = Follower(*args, **options)
    for cost, tenths, what in story:
        follower.reserve(cost, 1_000 * SECOND)
        if what == "cancel" and follower.waiting:
            follower.cancel(follower.waiting[len(follower.waiting) // 2])
        if what == "hold" and name not in ALIGNED:
            follower.hold(SECOND)
        follower.advance(tenths * SECOND // 10)
    seen = follower.shaper.forecast(calls)
    assert follower.shaper.forecast(calls) == seen
    waits = [follower.shaper.reserve(max_wait="10000d").delay for _ in range(calls)]
    assert seen == (waits[0], max(waits))


def test_a_forecast_of_very_many_calls_is_as_quick_as_one():
    """Ten billion calls at 7/s; whoever played them through would not come back."""
    shaper = Shaper("7/s", clock=ManualClock(1_000))
    shaper.reserve()
    assert shaper.forecast(7 * 10**9 - 7).last_in == pytest.approx(10**9 - 1)


def test_a_forecast_of_an_idle_key(anyio_backend):
    shaper = Shaper("10/s", clock=ManualClock(1_000))
    assert shaper.forecast() == (0.0, 0.0)
    assert anyio.run(shaper.aforecast, 11, backend=anyio_backend) == (0.0, 1.0)
    assert shaper.reserve().delay == 0.0


@pytest.mark.parametrize("calls", [0, -1, 1.5, True, None, "2"])
def test_what_is_no_number_of_calls(refused, calls):
    refused(lambda: Shaper("10/s").forecast(calls), "calls")
