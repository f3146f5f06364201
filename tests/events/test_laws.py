"""Whatever is cancelled, timed out, held, lost and closed: each call is reported once, and truthfully."""

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, MemoryStore, Policy, RateLimitedError, StoreUnavailableError, listen
from shapekit._runtime.process import SWITCH
from shapekit.events import Cancelled, Departed, Held, Refused, Reserved, Resumed, StoreFailed
from shapekit.testing import FaultyStore

from .calls import Tasks, Threads
from .stories import NUMBER, Call, Interrupted, Story, play, play_in_threads, stories

BESIDE = (Held, Resumed)


class Ledger:
    """The events of each call, with their instants, of a listener of the policy and one of everything."""

    def __init__(self, clock):
        self._clock = clock
        self.recorded = {}
        self.elsewhere = {}

    def here(self, event):
        self.recorded.setdefault(NUMBER.get(), []).append((event, self._clock.now()))

    def everywhere(self, event):
        self.elsewhere.setdefault(NUMBER.get(), []).append((event, self._clock.now()))


class InterruptingClock(ManualClock):
    """Interrupts the sleep with the number that the story gives for a call."""

    def __init__(self):
        super().__init__(autojump=True)
        self.interrupts = {}

    def sleep(self, seconds, alarm):
        number = NUMBER.get()
        left = self.interrupts.get(number)
        if left is not None:
            self.interrupts[number] = left - 1
            if left == 0:
                raise Interrupted
        super().sleep(seconds, alarm)


def check(story, ledger, endings, *, trips):
    """Check that the events of each call match its ending."""
    here, everywhere = (
        {call_number: [event for event, _ in own_events] for call_number, own_events in received.items()}
        for received in (ledger.recorded, ledger.elsewhere)
    )
    assert here == everywhere
    assert {type(event) for event in here.pop(None, ())} <= {Held, Resumed, StoreFailed}
    assert set(here) <= set(range(len(story.calls)))
    for number, call in enumerate(story.calls):
        own_events, error = here.get(number, []), endings[number].error
        failures = [event for event in own_events if isinstance(event, StoreFailed)]
        ways = [event for event in own_events if not isinstance(event, StoreFailed)]
        kinds = [type(event) for event in ways]
        assert {(event.policy, event.key) for event in own_events} <= {("stripe", call.key)}
        assert {event.cost for event in ways} <= {call.cost}
        if error is None:
            assert kinds == [Reserved, Departed]
            assert not failures
        elif isinstance(error, RateLimitedError):
            assert kinds in ([Refused], [Reserved, Refused])
            refused = ways[-1]
            assert (refused.code, refused.waited) == (error.code, len(kinds) == 2)
            assert refused.delay == pytest.approx(getattr(error, "delay", error.retry_after))
            assert not failures
        else:
            # A call that goes away before it has its slot reports nothing.
            assert kinds in ([], [Reserved, Cancelled])
            assert own_events == [*ways[:1], *failures, *ways[1:]]
            is_lost = isinstance(error, StoreUnavailableError) and "was closed" not in str(error)
            # Failures after the shaper is closed are not reported either.
            assert len(failures) == is_lost or (is_lost and story.closes_at_ms is not None)
        if trips is not None:
            check_instants(call, ledger.recorded.get(number, []), endings[number], trips)


def check_instants(call, reported, ending, trips):
    """Check that each event was reported when it happened, and how long it took."""
    instants = [at for _, at in reported]
    assert instants == sorted(instants)
    if reported:
        assert ending.at == pytest.approx(instants[-1])
    if ending.error is None:
        departed = reported[-1][0]
        since = call.at_ms / 1e3 if call.way == "scoped" else instants[0]
        assert departed.delay == pytest.approx(ending.at - since)
        assert 0 <= departed.late <= trips + 1e-9


AT_ZERO = Story([Call(0, way, "a", 1, {}, None) for way in ("schedule", "schedule", "scoped")], [], None)
"""The first of these does not stop the loop, and so the clock, on its way to the store and back."""


@settings(max_examples=200)
@example(AT_ZERO, "asyncio", 0.03)
@given(stories(8), st.sampled_from(["asyncio", "trio"]), st.sampled_from([None, 0.0, 0.03]))
def test_in_tasks(story, backend, trip_s):
    clock, store, trips = world_of(ManualClock(autojump=True), trip_s)
    policy = Policy("4/s", burst=2, name="stripe", max_wait=2, store=store)
    ledger = Ledger(clock)

    async def main():
        return await play(story, Tasks(backend), clock, policy, store)

    with policy.listen(ledger.here), listen(ledger.everywhere):
        endings = anyio.run(main, backend=backend)
    check(story, ledger, endings, trips=trips)
    assert not SWITCH.loud


@settings(max_examples=60)
@given(stories(5), st.sampled_from([None, 0.0]))
def test_in_threads(story, trip_s):
    clock, store, _ = world_of(InterruptingClock(), trip_s)
    policy = Policy("4/s", burst=2, name="stripe", max_wait=2, store=store)
    ledger = Ledger(clock)
    with policy.listen(ledger.here), listen(ledger.everywhere):
        endings = play_in_threads(story, Threads(), clock, policy, store)
    # Threads that wake up are not all awake before time goes on.
    check(story, ledger, endings, trips=None)
    assert not SWITCH.loud


def world_of(clock, trip_s):
    """A clock, a store on it, which may be far away and break there, and how late a call may leave it."""
    if trip_s is None:
        store = MemoryStore(clock)
        store.down = False
        return clock, store, 0.0
    store = FaultyStore(MemoryStore(clock))
    store.slow = trip_s
    return clock, store, 4 * trip_s
