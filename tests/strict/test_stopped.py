"""Whatever stops a process, calls leave by the law: in virtual time, in which nothing else is ever late."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ..benchmarks.departures import rate_reached
from .law import check_departures
from .stopped import Fleet

SECONDS = 4
EVERY_TWO_S = [(at + 1.7, at + 2.0) for at in range(0, SECONDS, 2)]
COLD = [(0.0003, 0.2)]
STOPS = {
    "never": [[], [], []],
    "one loop, blocked once": [[(2.0, 2.3)]],
    "one loop, blocked again and again": [EVERY_TWO_S],
    "a cold start of all": [[(0.0003, 0.1)], [(0.0003, 0.2)], [(0.0003, 0.3)]],
    "a cold start of one": [COLD, [], []],
    "one of three, again and again": [EVERY_TWO_S, [], []],
    "one of three, for a second": [[(2.0, 3.0)], [], []],
    "all of them": [[(2.0, 2.5)]] * 3,
}


@pytest.mark.parametrize("rate", ["49/s", "49/s; 100 per 3 seconds"])
@pytest.mark.parametrize("stops", STOPS.values(), ids=STOPS)
def test_no_window_has_more_than_its_rate_and_one_call(anyio_backend, stops, rate):
    fleet = Fleet(rate, stops)
    fleet.run(anyio_backend, callers=10, seconds=SECONDS)
    check_departures(fleet.left, *rate.split(";"))
    if len(stops) == 1:
        assert fleet.order == sorted(fleet.order)


def spans(length):
    """Stops in ascending order, by their instants in milliseconds."""
    instants = st.lists(st.integers(0, length), max_size=8, unique=True).map(sorted)
    return instants.map(lambda at: [(a / 1_000, b / 1_000) for a, b in zip(at[::2], at[1::2], strict=False)])


rates, callers = st.sampled_from(["10/s", "49/s", "200/s"]), st.integers(1, 12)


@given(st.lists(spans(3_000), min_size=1, max_size=4), rates, callers)
@settings(max_examples=40)
@example([[(0.0, 0.05)], [(0.02, 2.0)]], "49/s", 10)
@example([[(0.0, 0.001), (0.006, 0.818), (0.824, 1.086)]], "10/s", 2)
# A stop in the middle of a question does not pass for a store that is far away.
@example([[(0.143, 0.257)], [(0.143, 0.257), (0.258, 0.344)], [(0.138, 0.257)]], "200/s", 8)
# Calls that are late by less than the grace do not leave together, where late calls were before them.
@example([[(0.143, 0.259), (0.266, 0.365)]] * 3, "200/s", 8)
# Nor do calls that are late again, while so many are late that not all get their slots at once.
@example(
    [
        [(0.099, 0.888), (0.934, 2.198)],
        *[[(0.938, 1.996)]] * 2,
        [(0.066, 0.215), (0.842, 1.51), (1.749, 2.149), (2.155, 2.811)],
    ],
    "49/s",
    8,
)
def test_the_law_holds_whichever_processes_are_stopped_and_when(stops, rate, callers):
    fleet = Fleet(rate, stops)
    fleet.run("asyncio", callers=callers, seconds=3)
    check_departures(fleet.left, rate)


@given(st.lists(spans(1_000), min_size=1, max_size=4), callers)
@settings(max_examples=20)
def test_the_law_holds_under_further_limits_for_stops_of_up_to_a_second(stops, callers):
    fleet = Fleet("30/s; 50 per 2 seconds", stops)
    fleet.run("asyncio", callers=callers, seconds=4)
    check_departures(fleet.left, "30/s", "50 per 2 seconds")


@pytest.mark.parametrize("rate", [49, 98])
@pytest.mark.parametrize(
    ("name", "ideal"),
    [
        ("never", 1.0),
        ("one loop, blocked once", 0.925),
        ("a cold start of one", 0.98),
        ("one of three, again and again", 0.95),
    ],
)
def test_no_more_slots_pass_unused_than_were_missed(name, ideal, rate):
    """All slots that pass while a loop is blocked, a third of those while one of three is stopped."""
    fleet = Fleet(f"{rate}/s", STOPS[name])
    fleet.run("asyncio", callers=10, seconds=SECONDS)
    assert rate_reached(fleet.left) >= (ideal - 0.03) * rate
    check_departures(fleet.left, f"{rate}/s")
