"""Prefetch on a store far away, in virtual time: threads, asyncio and trio, and all that may go wrong.

The clock jumps while a tender is between two sleeps, so the number of its trips shows nothing here.
"""

import threading
from itertools import pairwise

import anyio
import pytest

from shapekit import ManualClock, MemoryStore, Policy, Quota, Shaper, shaped
from shapekit._runtime.drivers import run
from shapekit.algorithms.queue.wire import CANCEL_MANY, LOOK, RESERVE, RESERVE_MANY
from shapekit.errors import ConfigError, QueueFullError, StoreUnavailableError
from shapekit.testing import check_pace

from ...crew import in_threads
from ...stores.conftest import script  # noqa: F401 - a fixture
from ..slow_store import FarStore, in_another_process
from .conftest import PATIENCE_S, tenders

each_loop = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def slots_of(reservations):
    return sorted(reservation.departs_at for reservation in reservations)


def test_threads_share_the_slots_of_a_trip(store, shaper_on):
    shaper = shaper_on(store)
    reservations = []

    def work():
        reservations.extend(shaper.schedule() for _ in range(60))

    in_threads([work] * 4)
    assert len(reservations) == 240
    check_pace(slots_of(reservations), "100/s", tolerance="1us")
    assert store.trips[RESERVE] == 0


@each_loop
def test_tasks_share_the_slots_of_a_trip(store, shaper_on, backend):
    shaper = shaper_on(store)
    reservations = []

    async def work():
        reservations.extend([await shaper.aschedule() for _ in range(60)])

    async def main():
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(work)

    anyio.run(main, backend=backend)
    assert len(reservations) == 240
    check_pace(slots_of(reservations), "100/s", tolerance="1us")
    assert store.trips[RESERVE] == 0


def test_two_processes_own_different_slots(store, shaper_on):
    shapers = [shaper_on(store), shaper_on(in_another_process(store))]
    reservations = []

    def work(shaper):
        reservations.extend(shaper.schedule() for _ in range(40))

    in_threads([lambda shaper=shaper: work(shaper) for shaper in shapers for _ in range(3)])
    assert len(reservations) == 240
    check_pace(slots_of(reservations), "100/s", tolerance="1us")


def test_no_call_leaves_before_its_slot(store, shaper_on, clock):
    shaper = shaper_on(store)
    early = []

    def work():
        for _ in range(40):
            reservation = shaper.schedule()
            early.append(clock.now() + FarStore.ahead_s - reservation.departs_at)

    in_threads([work] * 4)
    assert min(early) >= -1e-6


def test_in_the_end_no_slot_is_owned_and_the_threads_end(store, shaper_on):
    shaper = shaper_on(store)

    def work():
        for _ in range(30):
            shaper.schedule()

    in_threads([work] * 4)
    for thread in tenders():
        thread.join(PATIENCE_S)
    assert tenders() == []
    assert all(len(entry.buffer) == 0 for entry in shaper.core.prefetch._entries.values())


def test_closing_hands_back_what_is_owned(store, shaper_on, clock):
    shaper = shaper_on(store)
    in_threads([lambda: [shaper.schedule() for _ in range(20)]] * 4)
    tail = store._there.bind("far", shaper.core.queue, LOOK)("default")[0][0]
    shaper.close()
    assert all(len(entry.buffer) == 0 for entry in shaper.core.prefetch._entries.values())
    assert store._there.bind("far", shaper.core.queue, LOOK)("default")[0][0] <= tail
    with pytest.raises(StoreUnavailableError):
        shaper.reserve()


@each_loop
def test_aclose_is_the_same(store, shaper_on, backend):
    shaper = shaper_on(store)

    async def main():
        await shaper.aschedule()
        await shaper.aclose()
        with pytest.raises(StoreUnavailableError):
            await shaper.areserve()

    anyio.run(main, backend=backend)


class SlowAtWill(MemoryStore):
    """Answers no trip for slots before `go` is set; `entered` is set when one has come."""

    shared = True
    instant = False

    def __init__(self, clock):
        super().__init__(clock)
        self.go, self.entered = threading.Event(), threading.Event()
        self.go.set()

    def bind(self, name, program, operation):
        apply = super().bind(name, program, operation)
        if operation != RESERVE_MANY:
            return apply

        def slow(key, *args):
            self.entered.set()
            assert self.go.wait(PATIENCE_S)
            return apply(key, *args)

        return slow


@each_loop
def test_the_slot_of_a_cancelled_caller_goes_to_the_next(shaper_on, backend):
    """The caller was cancelled while its slot was on the way; the calls that waited with it have theirs."""
    store = SlowAtWill(ManualClock(1_000.0))
    shaper = shaper_on(store, "1/s")
    reservations = []

    async def stay():
        reservations.append(await shaper.areserve())

    async def main():
        async with anyio.create_task_group() as group:
            store.go.clear()
            store.entered.clear()
            async with anyio.create_task_group() as doomed:
                doomed.start_soon(shaper.aschedule)
                await anyio.to_thread.run_sync(store.entered.wait, PATIENCE_S)
                group.start_soon(stay)
                await anyio.wait_all_tasks_blocked()
                doomed.cancel_scope.cancel()
            store.go.set()

    first = shaper.reserve()
    anyio.run(main, backend=backend)
    reservations.append(shaper.reserve())
    assert [reservation.departs_at - first.departs_at for reservation in reservations] == [1, 2]


def test_the_slot_of_an_interrupted_thread_goes_to_the_next(shaper_on, monkeypatch):
    store = SlowAtWill(ManualClock(1_000.0))
    shaper = shaper_on(store, "1/s")
    first = shaper.reserve()

    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            super().wait(PATIENCE_S)
            raise KeyboardInterrupt

    take = shaper.core.prefetch._take
    with monkeypatch.context() as patched:
        patched.setattr(shaper.core.prefetch, "_take", lambda key, call, _: take(key, call, Interrupted))
        with pytest.raises(KeyboardInterrupt):
            shaper.reserve()
    assert shaper.reserve().departs_at - first.departs_at == 1


def test_a_call_that_costs_two_gets_its_slot_from_the_store(store, shaper_on):
    shaper = shaper_on(store)
    reservations = []

    def work():
        reservations.extend([shaper.schedule(cost=cost) for cost in (1, 2, 1, 1) * 5])

    in_threads([work] * 4)
    check_pace(
        [(reservation.departs_at, reservation.cost) for reservation in reservations],
        "100/s",
        2,
        tolerance="1us",
    )


def test_a_slot_that_is_cancelled_goes_back_to_the_store(shaper_on):
    """Another process may have it; a second time does nothing."""
    store = FarStore(ManualClock(1_000.0), 0)
    shaper = shaper_on(store, "1/s")
    shaper.reserve()
    reservation = shaper.reserve()
    assert reservation.cancel()
    assert not reservation.cancel()
    other = shaper_on(in_another_process(store), "1/s").reserve()
    assert other.departs_at == reservation.departs_at


def test_a_call_that_may_not_wait_is_refused(store, shaper_on):
    shaper = shaper_on(store, "1/s")
    shaper.reserve()
    with pytest.raises(QueueFullError):
        shaper.schedule(max_wait=0)


def test_a_hold_by_another_process_takes_effect_within_a_span(store, shaper_on, clock):
    shaper = shaper_on(store)
    other = shaper_on(in_another_process(store))
    left, held = [], threading.Event()

    def work():
        while clock.now() < 1_008:
            shaper.schedule()
            left.append(clock.now())
            if clock.now() > 1_002 and not held.is_set():
                held.set()
                other.hold("3s")
                held_at.append(clock.now())

    held_at = []
    in_threads([work] * 3)
    quiet = [at for at in left if held_at[0] + 1.1 < at < held_at[0] + 2.9]
    assert quiet == []
    assert max(late - early for early, late in pairwise(sorted(left))) >= 1.8


def test_a_hold_by_the_own_process_takes_effect_at_once(store, shaper_on, clock):
    shaper = shaper_on(store)
    left, over = [], threading.Event()

    def work():
        while not over.is_set():
            shaper.schedule()
            left.append(clock.now())

    def holder():
        while len(left) < 100:
            clock.sleep(0.01, threading.Event())
        shaper.hold("3s")
        held_at.append(clock.now())
        clock.sleep(4, threading.Event())
        over.set()

    held_at = []
    in_threads([work, work, work, holder])
    # Calls that were about to leave when the answer came have left; no others.
    assert [at for at in left if held_at[0] + 0.06 < at < held_at[0] + 2.9] == []
    assert max(left) > held_at[0] + 2.9


def test_a_hold_lasts_until_every_process_has_noticed_it(store, shaper_on):
    """It leaves by its old slots for a span: after a shorter hold, beside those that have moved."""
    assert [shaper_on(store).hold("300ms", key="short"), shaper_on(store).hold("2s", key="long")] == [1.01, 2]
    assert shaper_on(store, prefetch=None).hold("300ms", key="plain") == 0.3


def test_a_hold_ends_once_every_process_has_noticed_its_end(store, shaper_on):
    waits = []
    for prefetch in (None, "1s", "3s"):
        shaper = shaper_on(store, prefetch=prefetch)
        shaper.hold("10s", key=str(prefetch))
        waits.append(shaper.resume(key=str(prefetch)))
    assert waits == [1.5, 2.51, 4.51]


def test_waiting_calls_raise_the_error_of_a_trip_until_the_store_works_again(store, shaper_on):
    shaper = shaper_on(store)
    store.broken = StoreUnavailableError("gone")
    errors = []

    def work():
        try:
            shaper.schedule()
        except StoreUnavailableError as error:
            errors.append(error)

    in_threads([work] * 3)
    assert len(errors) == 3
    assert len(set(map(id, errors))) == 3
    store.broken = None
    assert shaper.schedule()


def test_a_store_that_fails_when_slots_are_given_back_gets_them_later(store, shaper_on, clock, monkeypatch):
    bind, tries, enough = FarStore._bind_there, [], threading.Event()
    is_back, given_back = threading.Event(), threading.Event()

    def failing(self, name, program, operation):
        apply = bind(self, name, program, operation)

        def fail(*args):
            if operation is CANCEL_MANY and not is_back.is_set():
                tries.append(clock.now())
                if len(tries) >= 4:
                    enough.set()
                raise StoreUnavailableError("gone")
            answer = apply(*args)
            if operation is CANCEL_MANY:
                given_back.set()
            return answer

        return fail

    monkeypatch.setattr(FarStore, "_bind_there", failing)
    limit = {"gates": (Quota("300/rolling:1d"),)}
    shaper = shaper_on(store, "100/s", **limit)
    in_threads([lambda: [shaper.schedule() for _ in range(20)]] * 4)
    # A call that misses its slot lets it be given back at once.
    tries.clear()
    enough.clear()
    assert enough.wait(PATIENCE_S)
    is_back.set()
    assert given_back.wait(PATIENCE_S)
    assert all(1.0 <= after - before <= 1.1 for before, after in pairwise(tries))
    other = shaper_on(in_another_process(store), "100/s", prefetch=None, **limit)
    assert sum(bool(other.reserve()) for _ in range(300)) == 220


def test_a_call_that_gives_up_while_the_store_fails_gives_its_slot_back_later(store, shaper_on, monkeypatch):
    bind, tries, given_back = FarStore._bind_there, [], threading.Event()

    def failing_once(self, name, program, operation):
        apply = bind(self, name, program, operation)

        def cancel(*args):
            tries.append(args)
            if len(tries) == 1:
                raise StoreUnavailableError("gone")
            answer = apply(*args)
            given_back.set()
            return answer

        return cancel if operation is CANCEL_MANY else apply

    monkeypatch.setattr(FarStore, "_bind_there", failing_once)
    shaper = shaper_on(store, "1/h", gates=(Quota("2/rolling:1d"),))
    shaper.reserve()
    waiting = shaper.reserve()
    with pytest.raises(StoreUnavailableError):
        run(shaper.core.give_back, waiting)
    assert given_back.wait(PATIENCE_S)
    assert shaper.reserve().departs_at == waiting.departs_at


@pytest.mark.parametrize("limit", [{}, {"gates": (Quota("5/rolling:1h"),)}])
def test_a_call_that_has_missed_its_slot_gets_another_one(store, shaper_on, clock, limit):
    shaper = shaper_on(store, "10/s", **limit)
    taken = [shaper.reserve() for _ in range(5)]
    waiting = [reservation for reservation in taken if reservation.delay]
    clock.advance(1)
    granted = run(shaper.core.prefetch.exchange, "default", taken[0].grant)
    assert granted.accepted
    assert granted.departs_at_us > taken[-1].grant.departs_at_us
    assert waiting
    for reservation in waiting:
        clock.advance(1)
        run(shaper.core.waiter.wait, reservation, None, None)
        assert reservation.departs_at + 0.2 > clock.now() + store.ahead_s
    assert sorted({*slots_of(taken)}) == slots_of(taken)


def test_a_slot_that_was_owned_for_a_while_shows_nothing_of_the_servers_clock(store, shaper_on, clock):
    shaper = shaper_on(store)
    granted = shaper.reserve().granted
    assert shaper.core.waiter.is_prompt(granted, clock.now_us())
    assert shaper.core.status.store_clock.ahead_us(granted[2], clock.now_us()) is None


def test_a_quota_is_charged_for_what_has_left_alone(store, shaper_on):
    shaper = shaper_on(store, gates=(Quota("10_000/rolling:1h"),))
    in_threads([lambda: [shaper.schedule() for _ in range(30)]] * 4)
    shaper.close()
    state, now, _ = store._there.bind("far", shaper.core.queue, LOOK)("default")
    assert shaper.core.queue.constraints.algorithms[0].peek(state[7][0], now).current == 120


def test_on_a_store_that_answers_at_once_prefetch_changes_nothing():
    clock = ManualClock(autojump=True)
    store = MemoryStore(clock)
    shaper = Shaper("10/s", store=store, prefetch="1s")
    assert [shaper.schedule().departs_at for _ in range(3)] == [0.0, 0.1, 0.2]
    assert tenders() == []


@pytest.mark.parametrize("prefetch", [0, -1, "61s", True, "soon", float("nan")])
def test_a_prefetch_that_is_no_span_is_refused(store, prefetch):
    with pytest.raises(ConfigError) as caught:
        Shaper("10/s", name="far", store=store, prefetch=prefetch)
    assert caught.value.field == "prefetch"


def test_prefetch_is_accepted_wherever_keywords_of_a_policy_are(store):
    policy = Policy("10/s", name="far", store=store, prefetch="1s")
    assert policy.shaper.core.prefetch is not None

    @shaped("10/s", name="far too", store=store, prefetch="2s")
    def call():
        return 1

    assert call() == 1
    from_dict = Policy.from_dict({"rate": "10/s", "prefetch": "1s"}, name="from a dict", store=store)
    assert from_dict.shaper.core.prefetch is not None
    for each in (policy, from_dict):
        each.close()
    call.policy.close()


FORKING = """
import os, sys, threading
from shapekit import Shaper, SQLiteStore

shaper = Shaper("50/s", name="far", store=SQLiteStore(sys.argv[1]), prefetch="2s")

def work():
    for _ in range(15):
        shaper.schedule()

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
with shaper.core.prefetch._lock:
    pid = os.fork()
slots = [shaper.reserve().grant.start for _ in range(5)]
if pid == 0:
    print(*slots, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(*slots)
"""


CLOSED = """
import os, sys
from shapekit import Shaper, SQLiteStore, StoreUnavailableError

shaper = Shaper("50/s", name="far", store=SQLiteStore(sys.argv[1]), prefetch="2s")
shaper.schedule()
shaper.close()
pid = os.fork()
if pid:
    os.waitpid(pid, 0)  # one after the other: they print to one pipe
for call in (shaper.reserve, shaper.schedule):
    try:
        print(call(), flush=True)
    except StoreUnavailableError as error:
        print(error, flush=True)
if pid == 0:
    os._exit(0)
"""


def test_a_closed_shaper_is_closed_in_a_forked_child_too(tmp_path, script):  # noqa: F811
    process = script(CLOSED, str(tmp_path / "limits.db"))
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert out.splitlines() == ["shaper 'far' was closed"] * 4


def test_a_forked_child_owns_nothing_of_its_parents(tmp_path, script):  # noqa: F811
    """Parent and child take slots after the fork, and no slot twice."""
    process = script(FORKING, str(tmp_path / "limits.db"))
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    slots = out.split()
    assert len(slots) == 10
    assert len(set(slots)) == 10
