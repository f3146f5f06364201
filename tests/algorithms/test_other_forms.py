"""A window that goes on in another form has everything on its books that the other had."""

from hypothesis import example, given
from hypothesis import strategies as st

from shapekit import SlidingWindow, SlidingWindowLog

FAR = 10_000
WINDOW_S = 60
FORMS = st.sampled_from(
    [SlidingWindowLog(FAR, WINDOW_S), *(SlidingWindow(FAR, WINDOW_S, buckets=n) for n in (1, 2, 3, 7, 60))]
)
CHARGES = st.lists(
    st.tuples(st.integers(0, 15_000_000), st.integers(0, 150_000_000), st.integers(1, 9)),
    min_size=1,
    max_size=30,
)
"""How long after the one before, how far ahead, and how much."""


@given(FORMS, FORMS, CHARGES)
@example(
    SlidingWindow(FAR, WINDOW_S, buckets=1),
    SlidingWindow(FAR, WINDOW_S, buckets=7),
    [(0, 0, 2), (0, 95_000_000, 1)],
)
def test_nothing_is_forgotten_and_nothing_ends_sooner(old, new, charges):
    """Calls that leave at once, and slots ahead, in their order."""
    state, now, slot = None, 1_000_000_000, 0
    for gap_us, ahead_us, cost in charges:
        now += gap_us
        slot = max(slot, now + max(0, ahead_us - 75_000_000))
        state = old.charge(state, now, slot, cost)[0]
    before = list(old.entries(state, now))
    adopted = new.adopt(state, old, now)
    after = list(new.entries(adopted, now))
    assert sum(count for _, count in after) == sum(count for _, count in before)
    # By every instant, no more has been let go of than before.
    for at, _ in before:
        assert sum(count for when, count in after if when <= at) <= sum(
            count for when, count in before if when <= at
        )
    # What counts now does so as long as a call may come before it has passed.
    told, counts = new.peek(adopted, now), sum(count for when, count in before if when == now)
    assert told.current >= counts or told.retry_after_us >= WINDOW_S * 1_000_000
