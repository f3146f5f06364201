"""What a process keeps of each key, and the errors of waiting calls for which no thread fetches slots."""

import threading

import anyio
import pytest

from shapekit import Override, StoreUnavailableError
from shapekit._queue.prefetch import _DESKS, _Call
from shapekit._queue.waiter import KeyState
from shapekit._runtime.drivers import TASKS, AsyncAlarm, ThreadAlarm, run
from shapekit.algorithms.queue.wire import CONFIRM
from shapekit.rate import SECOND_US
from shapekit.stores.base import changed

from ...crew import in_threads
from ..slow_store import FarStore
from .conftest import PATIENCE_S, tenders


def test_keys_that_are_no_longer_used_are_forgotten(store, shaper_on):
    shaper = shaper_on(store)
    for number in range(3 * _DESKS):
        shaper.reserve(f"key {number}")
        for thread in tenders():
            thread.join(PATIENCE_S)
        assert len(shaper.core.prefetch._entries) <= _DESKS


def test_where_no_thread_is_left_waiting_calls_raise(store, shaper_on, monkeypatch):
    shaper = shaper_on(store)

    def full(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(StoreUnavailableError, match="no thread is left"):
            shaper.reserve()
    assert shaper.reserve()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_calls_that_wait_for_an_aborted_trip_raise(store, shaper_on):
    shaper, errors = shaper_on(store), []

    def work():
        with pytest.raises(StoreUnavailableError, match="has ended") as caught:
            shaper.reserve()
        errors.append(caught.value)

    store.broken = GeneratorExit()
    in_threads([work] * 3)
    assert len(errors) == 3
    store.broken = None
    assert shaper.reserve()


def come(prefetch, request):
    """A call that has asked, in a thread."""
    call = _Call(request)
    prefetch._take("key", call, ThreadAlarm)
    return call


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_thread_that_is_interrupted_as_it_asks_leaves_no_call_behind(store, shaper_on, clock, monkeypatch):
    """A slot would be fetched for it with the next trip, and charged."""
    shaper, now = shaper_on(store), clock.now()
    with monkeypatch.context() as patched:
        patched.setattr(shaper.core.prefetch, "_wake_fetcher", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shaper.reserve()
    assert shaper.reserve().departs_at == now + FarStore.ahead_s + 0.025


def test_a_call_that_comes_right_after_a_trip_takes_no_slot_ahead_of_those_that_wait(
    store, shaper_on, clock, monkeypatch
):
    """The trip has filled the buffer, and its thread has not served the waiting calls yet."""
    prefetch, now = shaper_on(store).core.prefetch, clock.now_us()
    monkeypatch.setattr(prefetch, "_wake_fetcher", lambda *_: None)
    entry = prefetch._entry("key")
    calls = [come(prefetch, (1, None, 7)) for _ in range(2)]
    state, slots = prefetch._reserve_many("key", [], (5, SECOND_US, 1))
    entry.buffer.hear(KeyState(*state[:3], now - state[3], mark_us=state[4]), now, now, entry.buffer.doubts)
    entry.buffer.fill([], slots, now)
    calls.append(come(prefetch, (1, None, 7)))
    assert entry.calls == calls
    prefetch._serve(entry, now)
    assert [call.granted.due_us for call in calls] == [slot.due_us for slot in slots[:3]]


@pytest.mark.parametrize("request_", [(2, None, 7), (1, 5_000, 7)])
def test_a_call_that_has_to_go_to_the_store_keeps_no_other_from_its_slot(
    store, shaper_on, clock, monkeypatch, request_
):
    """It costs more, or may not wait so long. Calls behind it went to the store with it, for slots at the end
    of the line, and those that came during that trip took the slots before these.
    """
    prefetch, now = shaper_on(store).core.prefetch, clock.now_us()
    monkeypatch.setattr(prefetch, "_wake_fetcher", lambda *_: None)
    state, slots = prefetch._reserve_many("key", [(9, None, 7)], (5, SECOND_US, 1))
    entry = prefetch._entry("key")
    entry.buffer.hear(KeyState(*state[:3], now - state[3], mark_us=state[4]), now, now, entry.buffer.doubts)
    entry.buffer.fill([], slots[1:], now)
    first, *behind = [come(prefetch, request) for request in (request_, (1, None, 7), (1, None, 7))]
    prefetch._serve(entry, now)
    assert entry.calls == [first]
    assert [call.granted.due_us for call in behind] == [slot.due_us for slot in slots[1:3]]


def test_no_slot_is_fetched_for_a_call_that_is_gone(store, shaper_on, clock, monkeypatch):
    prefetch = shaper_on(store).core.prefetch
    monkeypatch.setattr(prefetch, "_wake_fetcher", lambda *_: None)
    gone, waiting = [come(prefetch, (1, None, 7)) for _ in range(2)]
    gone.is_gone = True
    entry = prefetch._entry("key")
    prefetch._serve(entry, clock.now_us())
    assert entry.calls == [waiting]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_call_that_knows_the_key_waits_for_the_answer_that_earlier_calls_wait_for(
    store, shaper_on, clock, backend
):
    """Another trip has shown the state of the key meanwhile, and the later call left by that."""
    shaper = shaper_on(store)
    buffer, left = shaper.core.prefetch._entry("key").buffer, []

    async def leave(name):
        await shaper.core.status.leaving(TASKS, "key")
        left.append(name)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(leave, "earlier")
            await clock.asleep(0.01, AsyncAlarm())
            now = clock.now_us()
            buffer.hear(KeyState(7, 0, 0, -store.ahead_s * SECOND_US), now, now, buffer.doubts)
            assert buffer.known(now) is not None
            group.start_soon(leave, "later")

    anyio.run(main, backend=backend)
    assert left == ["earlier", "later"]
    assert store.trips == {CONFIRM: 1}


@pytest.mark.parametrize("asks", ["leaving", "ask"])
def test_all_calls_leave_by_one_estimate_of_the_stores_clock(store, shaper_on, clock, asks):
    """A call that asked for itself went by its answer alone, and one that knew the key left before it."""
    shaper = shaper_on(store)
    status, prefetch = shaper.core.status, shaper.core.prefetch
    state, slots = prefetch._reserve_many("key", [(900, None, 7)], (5, SECOND_US, 1))
    buffer, now = prefetch._entry("key").buffer, clock.now_us()
    buffer.hear(
        KeyState(*state[:3], now - state[3] + 30_000, mark_us=state[4]), now - 80_000, now, buffer.doubts
    )
    buffer.fill([], slots[1:], now)
    clock.advance(2)
    key_state = run(getattr(status, asks), "key")
    if asks == "leaving":
        _, key_state = key_state
    known = buffer.known(clock.now_us())
    assert key_state.ahead_us == known.ahead_us
    assert key_state.ahead_us > status.store_clock.lead_us


@pytest.mark.parametrize("rate", ["70/s", "70/s; 1000/h"])
def test_slots_that_have_passed_are_over_by_the_numbers_of_an_operator_too(store, shaper_on, clock, rate):
    """Its grid is finer than that of the code: read by that one, its places lie years ahead."""
    shaper = shaper_on(store)
    run(changed, store._there, "far", lambda _: (Override(rate=rate),))
    prefetch, now = shaper.core.prefetch, clock.now_us()
    state, slots = prefetch._reserve_many("key", [], (5, SECOND_US, 1))
    buffer = prefetch._entry("key").buffer
    buffer.hear(KeyState(*state[:3], now - state[3], mark_us=state[4]), now, now, buffer.doubts)
    buffer.fill([], slots, now)
    assert len(buffer) == 5
    assert buffer.take(now + SECOND_US, 1, None) is None
    # A limit with memory counts them until they are given back.
    assert len(buffer._returning) == (5 if ";" in rate else 0)
