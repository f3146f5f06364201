"""Whatever is cancelled, timed out, held, lost and closed: each call is told as one call, as it was."""

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shapekit import ManualClock, MemoryStore, Policy, RateLimitedError, StoreUnavailableError, listen
from shapekit._runtime.process import SWITCH
from shapekit.events import Cancelled, Departed, Held, Refused, Reserved, Resumed, StoreFailed
from shapekit.testing import FaultyStore

from .calls import Tasks, Threads
from .stories import WHO, Call, Interrupted, Story, play, play_in_threads, stories

BESIDE = (Held, Resumed)


class Ledger:
    """What was told of each call, with the instant, to one who listens here and to one everywhere."""

    def __init__(self, clock):
        self._clock = clock
        self.told = {}
        self.elsewhere = {}

    def here(self, event):
        self.told.setdefault(WHO.get(), []).append((event, self._clock.now()))

    def everywhere(self, event):
        self.elsewhere.setdefault(WHO.get(), []).append((event, self._clock.now()))


class InterruptingClock(ManualClock):
    """Interrupts the sleep with the number that is said for a call."""

    def __init__(self):
        super().__init__(autojump=True)
        self.interrupts = {}

    def sleep(self, seconds, alarm):
        who = WHO.get()
        left = self.interrupts.get(who)
        if left is not None:
            self.interrupts[who] = left - 1
            if left == 0:
                raise Interrupted
        super().sleep(seconds, alarm)


def check(story, ledger, endings, *, trips):
    """That each call was told as what it was."""
    here, everywhere = (
        {who: [event for event, _ in told] for who, told in heard.items()}
        for heard in (ledger.told, ledger.elsewhere)
    )
    assert here == everywhere
    assert {type(event) for event in here.pop(None, ())} <= {Held, Resumed, StoreFailed}
    assert set(here) <= set(range(len(story.calls)))
    for number, call in enumerate(story.calls):
        told, error = here.get(number, []), endings[number].error
        failures = [event for event in told if isinstance(event, StoreFailed)]
        ways = [event for event in told if not isinstance(event, StoreFailed)]
        kinds = [type(event) for event in ways]
        assert {(event.policy, event.key) for event in told} <= {("stripe", call.key)}
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
            # Of a call that goes away before it has its slot nothing is told.
            assert kinds in ([], [Reserved, Cancelled])
            assert told == [*ways[:1], *failures, *ways[1:]]
            is_lost = isinstance(error, StoreUnavailableError) and "was closed" not in str(error)
            # What fails once the shaper is closed, is not told either.
            assert len(failures) == is_lost or (is_lost and story.closes_at_ms is not None)
        if trips is not None:
            check_instants(call, ledger.told.get(number, []), endings[number], trips)


def check_instants(call, told, ending, trips):
    """That it was told when it happened, and how long it took."""
    instants = [at for _, at in told]
    assert instants == sorted(instants)
    if told:
        assert ending.at == pytest.approx(instants[-1])
    if ending.error is None:
        departed = told[-1][0]
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
    """A clock, a store on it, which may be far away and break there, and how late one may leave it."""
    if trip_s is None:
        store = MemoryStore(clock)
        store.down = False
        return clock, store, 0.0
    store = FaultyStore(MemoryStore(clock))
    store.slow = trip_s
    return clock, store, 4 * trip_s
