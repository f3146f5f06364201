"""What waiting costs a store: trips a minute of one process, for each kind of waiting, however many wait."""

import heapq
from functools import partial
from types import SimpleNamespace

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapekit import Adaptive, FixedWindow, ManualClock, MemoryStore, Policy, Shaper
from shapekit._runtime.drivers import TASKS, AsyncAlarm
from shapekit.algorithms.queue.wire import CONFIRM
from shapekit.integrations.celery import worker as celery_holds
from shapekit.integrations.celery import worker as celery_worker
from shapekit.integrations.celery.worker import Holds, MessageBuffer
from shapekit.keys import Target
from shapekit.testing import FaultyStore

from ..queue.slow_store import NotingStore, SlowStore, in_another_process

CROWDS = [1, 100, pytest.param(1_000, marks=pytest.mark.long)]
MINUTE_S = 60.0
TRIP_S = 0.001
SEARCH = Target("GET", "https", "api", None, "/search")


class Waiting:
    """A crowd that waits, each in a task of its own, and what that costs."""

    def __init__(self, clock, store, ask, prepare=None):
        self.clock, self.store = clock, store
        self._ask, self._prepare = ask, prepare

    def minutes(self, crowd, *starts_s):
        """The trips within each minute that begins so long after all calls have asked for their slots."""
        trips = []

        async def ask():
            await self._ask()

        async def main():
            if self._prepare is not None:
                await self._prepare()
            async with anyio.create_task_group() as tasks:
                for _ in range(crowd):
                    tasks.start_soon(ask)
                await self.clock.asleep(1.0, AsyncAlarm())
                began_s = self.clock.now()
                for start_s in starts_s:
                    await self.clock.asleep(max(0.0, began_s + start_s - self.clock.now()), AsyncAlarm())
                    before = self.store.trips.copy()
                    await self.clock.asleep(MINUTE_S, AsyncAlarm())
                    trips.append(sum((self.store.trips - before).values()))
                tasks.cancel_scope.cancel()

        anyio.run(main)
        return trips


@pytest.fixture
def clock():
    return ManualClock(1_000_000, autojump=True)


@pytest.fixture
def store(clock):
    return SlowStore(clock, TRIP_S)


@pytest.mark.parametrize("crowd", CROWDS)
def test_calls_that_wait_for_a_slot_ask_once_a_minute(clock, store, crowd):
    shaper = Shaper("1/h", name="api", store=store)
    waiting = Waiting(clock, store, shaper.aschedule, shaper.areserve)
    # Whether an operator has changed the limit; one call asks for all.
    assert max(waiting.minutes(crowd, 0, 600)) <= 1


@pytest.mark.parametrize("crowd", CROWDS)
def test_calls_that_wait_for_a_gate_ask_once_a_minute(clock, store, crowd):
    shaper = Shaper(gates=(FixedWindow(1, "10d"),), name="api", store=store)
    waiting = Waiting(clock, store, shaper.aschedule, shaper.areserve)
    # Whether an operator has changed the limit; one call asks for all.
    assert max(waiting.minutes(crowd, 0, 600)) <= 1


@pytest.mark.parametrize("crowd", CROWDS)
def test_calls_that_wait_for_a_quota_for_days_ask_once_a_minute(clock, store, crowd):
    shaper = Policy(quota="100/month", name="api", store=store).shaper
    spend = partial(shaper.areserve, cost=100)
    waiting = Waiting(clock, store, lambda: shaper.aschedule(max_wait="1000d"), spend)
    # Whether an operator has changed the limit; one call asks for all.
    assert max(waiting.minutes(crowd, 0, 600)) <= 1


@pytest.mark.parametrize("crowd", CROWDS)
def test_calls_that_wait_through_a_hold_ask_seldom(clock, store, crowd):
    shaper = Shaper("10/s", name="api", store=store)
    waiting = Waiting(clock, store, shaper.aschedule, lambda: shaper.ahold("15m"))
    first, middle = waiting.minutes(crowd, 0, 420)
    assert first <= 2
    assert middle <= 5


@pytest.mark.parametrize("crowd", [1, 20])
def test_calls_ask_more_often_towards_the_end_of_a_hold(clock, store, crowd):
    shaper = Shaper("10/s", name="api", store=store)
    waiting = Waiting(clock, store, shaper.aschedule, lambda: shaper.ahold("15m"))
    (last,) = waiting.minutes(crowd, 830)
    assert 20 <= last <= 80


@pytest.mark.parametrize("crowd", CROWDS)
def test_calls_that_wait_for_a_scope_ask_seldom(clock, store, crowd):
    policy = Policy("10/s", name="api", store=store)
    scoped = policy.scoped
    scoped.scopes.learn("api", SEARCH, "search")

    async def prepare():
        await scoped.hold(TASKS, 900, "api", "search")

    waiting = Waiting(clock, store, lambda: scoped.schedule(TASKS, "api", SEARCH, 1), prepare)
    first, middle = waiting.minutes(crowd, 0, 420)
    assert first <= 2
    assert middle <= 5


@pytest.mark.parametrize("crowd", CROWDS)
def test_calls_that_wait_for_an_adaptive_rate_ask_seldom(clock, store, crowd):
    shaper = Shaper(adaptive=Adaptive(min="1/h", max="10/s"), name="api", store=store)
    waiting = Waiting(clock, store, shaper.aschedule, shaper.areserve)
    first, later = waiting.minutes(crowd, 0, 600)
    assert first <= 2
    assert later <= 2


@pytest.mark.parametrize("crowd", [1, 20])
def test_calls_with_near_slots_ask_at_most_once_a_second(clock, store, crowd):
    shaper = Shaper(adaptive=Adaptive(min="1/2m", max="10/s"), name="api", store=store)
    waiting = Waiting(clock, store, shaper.aschedule, shaper.areserve)
    (trips,) = waiting.minutes(crowd, 58)
    assert 20 <= trips <= 70


@pytest.mark.parametrize("crowd", CROWDS)
def test_calls_that_wait_for_a_permit_ask_the_less_the_longer_nothing_changes(clock, crowd):
    # Two policies on one store: what the one does, the other learns only when it looks.
    truth = MemoryStore(clock)
    store, calls = FaultyStore(truth), []
    policy, other = (Policy(concurrency=1, name="api", store=one) for one in (store, truth))

    async def ask():
        async with policy.aadmit():
            pass

    async def main():
        with other.admit():
            async with anyio.create_task_group() as tasks:
                for _ in range(crowd):
                    tasks.start_soon(ask)
                for _ in range(3):
                    await clock.asleep(1.0, AsyncAlarm())
                    before = store.calls
                    await clock.asleep(MINUTE_S, AsyncAlarm())
                    calls.append(store.calls - before)
                tasks.cancel_scope.cancel()

    anyio.run(main)
    assert 60 <= calls[0] <= 170
    assert 45 <= calls[2] <= 62


def test_a_fleet_costs_no_more_than_its_processes(clock, store):
    shapers = [Shaper("10/s", name="api", store=in_another_process(store)) for _ in range(100)]
    each_once = iter(shapers)
    waiting = Waiting(clock, store, lambda: next(each_once).aschedule(), lambda: shapers[0].ahold("15m"))
    first, middle = waiting.minutes(100, 0, 420)
    assert first <= 200
    assert middle <= 500


# how late a change is noticed


@settings(max_examples=25)
@given(
    held_s=st.floats(1, 2_000),
    lifted=st.floats(0, 0.99),
    processes=st.integers(1, 4),
    each=st.integers(1, 4),
    backend=st.sampled_from(["asyncio", "trio"]),
)
def test_a_hold_that_another_process_ends_lets_all_go_in_order_on_the_grid(
    held_s, lifted, processes, each, backend
):
    """A call that noticed the end too late would leave late, and close to those that follow."""
    clock = ManualClock(1_000_000, autojump=True)
    truth = SlowStore(clock, 0.0)
    shapers = [Shaper("10/s", name="api", store=in_another_process(truth)) for _ in range(processes)]
    stranger = Shaper("10/s", name="api", store=in_another_process(truth))
    left, ends_s = [], []

    async def call(number):
        await shapers[number % processes].aschedule()
        left.append((number, clock.now()))

    async def main():
        await stranger.ahold(held_s)
        async with anyio.create_task_group() as tasks:
            for number in range(processes * each):
                tasks.start_soon(call, number)
                await clock.asleep(1e-5, AsyncAlarm())
            await clock.asleep(held_s * lifted, AsyncAlarm())
            ends_s.append(clock.now() + await stranger.aresume())

    anyio.run(main, backend=backend)
    assert [number for number, _ in left] == sorted(range(processes * each))
    assert [at for _, at in left] == pytest.approx([ends_s[0] + n / 10 for n in range(len(left))], abs=1e-5)


@pytest.mark.parametrize("crowd", [1, 30])
@pytest.mark.parametrize("kind", [MemoryStore, lambda clock: SlowStore(clock, TRIP_S)])
def test_a_change_by_the_same_process_takes_effect_at_once(clock, kind, crowd):
    store = kind(clock)
    shaper, twin = (Shaper("100/s", name="api", store=store) for _ in range(2))
    left = []

    async def call():
        await shaper.aschedule()
        left.append(clock.now())

    async def main():
        await shaper.ahold("1h")
        async with anyio.create_task_group() as tasks:
            for _ in range(crowd):
                tasks.start_soon(call)
            await clock.asleep(100, AsyncAlarm())
            for _ in range(9):
                # Each ends it sooner than the last, down to the least notice.
                await twin.aresume()

    began = clock.now()
    anyio.run(main)
    assert len(left) == crowd
    assert left[0] - began <= 102
    assert left[-1] - left[0] <= crowd / 100 + 0.05


def test_waiting_costs_no_trip_in_memory(clock):
    store = NotingStore(clock)
    shaper = Shaper("10/s", name="api", store=store)

    async def main():
        shaper.hold("1h")
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(shaper.aschedule)

    anyio.run(main)
    assert store.operations.count(CONFIRM) <= 2 * 10 + 1


# Celery


class VirtualWorker:
    """A worker's lobby on virtual time, with a park that holds nothing, and its count of scripts."""

    def __init__(self, monkeypatch):
        self.now, self.scripts, self.next_s = 0.0, 0, None
        self.has_room, self.unacknowledged = True, 0
        self._entries = []
        time = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(celery_worker, "time", time)
        monkeypatch.setattr(celery_holds, "time", time)
        app = SimpleNamespace(conf=_Conf(), tasks={})
        qos = SimpleNamespace(value=4)
        consumer = SimpleNamespace(app=app, connection_errors=(), channel_errors=(), timer=self, qos=qos)
        self.buffer = MessageBuffer(consumer)
        self.buffer._park = self
        self.buffer._is_open = True

    def call_after(self, length_s, call):
        entry = SimpleNamespace(call=call, is_over=False)
        heapq.heappush(self._entries, (self.now + length_s, id(entry), entry))
        return entry

    def cancel(self, entry):
        entry.is_over = True

    def bring_back(self, ahead_s, most, queued_s):
        self.scripts += 1
        return 0

    def shorten(self, group, left_s):
        self.scripts += 1

    def run(self, seconds):
        before, end = self.scripts, self.now + seconds
        while self._entries and self._entries[0][0] <= end:
            self.now, _, entry = heapq.heappop(self._entries)
            if not entry.is_over:
                entry.call()
        self.now = end
        return self.scripts - before


class _Conf(dict):
    broker_transport_options = None


@pytest.fixture
def worker(monkeypatch):
    return VirtualWorker(monkeypatch)


def test_an_idle_celery_worker_runs_one_script_a_second_at_most(worker):
    worker.buffer._look_in(0.0)
    assert 45 <= worker.run(MINUTE_S) <= 61
    assert 45 <= worker.run(MINUTE_S) <= 61


def test_an_idle_celery_worker_with_messages_parked_for_an_hour_runs_one_script_a_second(worker):
    worker.next_s = 3_600.0
    worker.buffer._look_in(0.0)
    assert 45 <= worker.run(MINUTE_S) <= 61


def test_a_worker_looks_in_time_for_a_message_that_it_parked(worker):
    worker.buffer._look_in(0.0)
    worker.run(10.0)
    before = worker.scripts
    worker.buffer._look_in(0.3)
    worker.run(0.3)
    assert worker.scripts == before + 1
    worker.buffer._look_in(50.0)
    assert 45 <= worker.run(MINUTE_S) <= 62


@pytest.mark.parametrize("keys", [1, 100])
def test_a_held_key_costs_a_celery_worker_few_trips(worker, keys):
    class Held:
        name = "api"
        lookups = 0

        def held(self, key):
            Held.lookups += 1
            return max(0.0, 900.0 - worker.now)

    holds, shaper = Holds(), Held()
    worker.buffer._holds = holds
    for number in range(keys):
        holds.note(shaper, SimpleNamespace(key=f"key {number}"), worker)
    worker.buffer._look_in(0.0)
    noted, Held.lookups = worker.scripts, 0
    assert noted == keys
    assert worker.run(MINUTE_S) <= 61 + 2 * keys
    assert Held.lookups <= 2 * keys
    worker.run(420 - worker.now)
    before, Held.lookups = worker.scripts, 0
    assert worker.run(MINUTE_S) - 61 <= 5 * keys, before
    assert Held.lookups <= 5 * keys
    worker.run(1_000.0 - worker.now)
    assert holds.next_s == float("inf")
