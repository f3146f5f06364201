"""Waiting calls learn of a change, and leave exactly by the new numbers, in their order."""

import threading
from contextlib import closing
from functools import partial

import anyio
import pytest

from shapekit import (
    GCRA,
    Adaptive,
    FixedWindow,
    ManualClock,
    MemoryStore,
    Override,
    Policy,
    QueueFullError,
    Quota,
    Shaper,
    SQLiteStore,
    listen,
)
from shapekit._queue.moving import QUICK_US, Limits
from shapekit._runtime.drivers import TASKS, AsyncAlarm
from shapekit.algorithms.overrides import written
from shapekit.algorithms.queue.slots import NOTICE_US
from shapekit.events import LimitChanged
from shapekit.stores.base import Settings, Stored

from ..queue.stage import Stage
from .conftest import put

PATIENCE_S = 20.0


class SlowFile(SQLiteStore):
    """A process's view of a file. It answers in virtual time, which does not wait for worker threads."""

    def _awaitable(self, call, give_back=None):
        async def slow(*args):
            answer = call(*args)
            await self.clock.asleep(0.001, AsyncAlarm())
            return answer

        return slow


def leaving(stage, slots):
    """The calls that have left, in order, as the stage is played."""
    left = []

    async def leave(slot):
        await slot.core.leave(TASKS, slot)
        left.append(slot)

    for slot in slots:
        stage.at(0, partial(leave, slot))
    return left


@pytest.fixture
def stage(anyio_backend, clock):
    return Stage(anyio_backend, clock)


def test_calls_leave_at_five_a_second_then_twenty_then_two_and_five_again(stage, clock):
    store = MemoryStore(clock)
    shaper = Shaper("5/s", store=store, name="api")
    for name in range(40):
        stage.wait_for(shaper, name)
    stage.at(1.0, lambda: put(store, "api", Override(rate="20/s")))
    stage.at(2.0, lambda: put(store, "api", Override(rate="2/s")))
    stage.at(4.0, lambda: put(store, "api"))
    stage.run()
    assert stage.names == list(range(40))
    expected = [
        *(number / 5 for number in range(7)),
        # From 1.35 s on by twentieths of a second: the next one had 50 ms to go, and now has 12.5.
        *(1.3625 + number / 20 for number in range(20)),
        # From 2.35 s on by halves: 12.5 ms to go become 125.
        *(2.475 + number / 2 for number in range(4)),
        # From 4.35 s on by fifths.
        *(4.35 - 0.375 / 2.5 + (number + 1) / 5 for number in range(9)),
    ]
    assert stage.times == pytest.approx(expected, abs=1e-5)


def test_a_change_for_one_key_moves_no_call_of_another(stage, clock):
    store = MemoryStore(clock)
    shaper = Shaper("1/s", store=store, name="api")
    for name in range(6):
        stage.wait_for(shaper, name, key="ab"[name % 2])
    stage.at(0.5, lambda: put(store, "api", Override("b", rate="10/s")))
    stage.run()
    left = dict(stage.left)
    assert [left[name] for name in (0, 2, 4)] == [0, 1, 2]
    assert [left[name] for name in (1, 3, 5)] == pytest.approx([0, 0.865, 0.965], abs=1e-5)


@pytest.mark.parametrize(
    "limits",
    [
        {"rate": "1/min"},
        {"rate": "1/s", "gates": [FixedWindow("1/min")]},
        {"rate": "1/min", "pace": "burst"},
        {"gates": [Quota("1/day")], "max_wait": "9d"},
        {"gates": [GCRA("1/min", burst=1)]},
    ],
    ids=["pace", "window", "burst", "quota", "meter"],
)
def test_off_lets_all_waiting_calls_go(stage, clock, limits):
    store = MemoryStore(clock)
    shaper = Shaper(**limits, store=store, name="api")
    for name in range(5):
        stage.wait_for(shaper, name)
    stage.at(10, lambda: put(store, "api", Override(state="off")))
    stage.run()
    assert stage.times == pytest.approx([0, *[10.35] * 4], abs=1e-3)
    assert stage.names == list(range(5))


def test_held_keeps_all_waiting_calls_until_it_is_removed(stage, clock):
    store = MemoryStore(clock)
    shaper = Shaper("5/s", store=store, name="api")
    for name in range(4):
        stage.wait_for(shaper, name)
    stage.wait_for(shaper, "bounded", at=0.05, max_wait=60)
    stage.at(0.1, lambda: put(store, "api", Override(state="held")))
    stage.at(3_600, lambda: put(store, "api"))
    stage.run()
    # A call that may not wait that long raises at once.
    at, error = stage.errors["bounded"]
    assert isinstance(error, QueueFullError)
    assert at == pytest.approx(0.1)
    assert stage.times == pytest.approx([0, 3600.45, 3600.65, 3600.85], abs=1e-4)


def test_an_override_that_ends_by_itself_wakes_waiting_calls(stage, clock):
    store = MemoryStore(clock)
    shaper = Shaper("10/s", store=store, name="api")
    put(store, "api", Override(rate="1/min", until=clock.now() + 30))
    for name in range(4):
        stage.wait_for(shaper, name)
    stage.run()
    first = 30.35 + 29.65 / 600
    assert stage.times == pytest.approx([0, first, first + 0.1, first + 0.2], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "override", "first"),
    [
        ({"rate": "1/min"}, Override(state="held", until=30), 30.35),
        ({"adaptive": Adaptive("1/s", "50/s")}, Override(state="held", until=30), 30.35),
        # Half of the minute is left.
        ({"rate": "1/s"}, Override(rate="1/min", until=30), 30.35 + 29.65 / 60),
        ({"adaptive": Adaptive("1/s", "50/s")}, Override(rate="1/min", until=30), 30.5),
    ],
    ids=["held", "held adaptive", "slower", "slower adaptive"],
)
@pytest.mark.parametrize("is_shared", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("ahead", [-5, 0, 600])
def test_the_end_of_an_override_moves_waiting_calls_whatever_the_date(
    anyio_backend, tmp_path, options, override, first, is_shared, ahead
):
    """An end is civil time; calls sleep by a clock that is never set."""
    clock = ManualClock(1_000, autojump=True)
    clock.step_wall(ahead)
    stage = Stage(anyio_backend, clock)
    with closing(SlowFile(tmp_path / "x.db", clock=clock) if is_shared else MemoryStore(clock)) as store:
        shaper = Shaper(**options, store=store, name="api")
        put(store, "api", override._replace(until=clock.wall_us() / 1e6 + 30))
        if override.state == "on":
            shaper.reserve()
        for name in range(3):
            stage.wait_for(shaper, name)
        stage.run()
    assert stage.names == [0, 1, 2]
    # A file is looked at now and then for changed limits.
    assert stage.times[0] == pytest.approx(first, abs=2 if is_shared else 1e-4)


def test_an_end_between_two_microseconds_takes_effect(stage, clock):
    store = MemoryStore(clock)
    shaper = Shaper("1/s", store=store, name="api")
    put(store, "api", Override(rate="1/h", until=clock.now() + 10 / 3))
    for name in range(2):
        stage.wait_for(shaper, name)
    stage.run()
    assert stage.times == pytest.approx([0, 10 / 3 + 0.35 + (3600 - 10 / 3 - 0.35) / 3600], abs=1e-4)


def test_a_store_with_another_date_is_not_read_all_the_time():
    clock = ManualClock(1_000)
    settings = Settings("api")
    settings.hear(Stored("1", written((Override(state="held", until=1_001),))), clock.wall_us())
    here, elsewhere = (Limits(settings, clock, hears_all=is_here) for is_here in (True, False))
    assert here.ends_at_us() == elsewhere.ends_at_us() == 1_001_000_000
    clock.step_wall(60)
    assert here.ends_at_us() == clock.now_us() + 1
    assert elsewhere.ends_at_us() == clock.now_us() + QUICK_US


def test_waiting_threads_move_too():
    store = MemoryStore()
    shaper = Shaper("1/h", store=store, name="api")
    shaper.reserve()
    left = threading.Event()

    def wait():
        shaper.schedule()
        left.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while not shaper.core.status.limits._alarms:
        pass
    put(store, "api", Override(rate="100/s"))
    assert left.wait(PATIENCE_S)
    thread.join()


@pytest.mark.anyio
async def test_a_call_cancelled_after_a_change_gives_its_slot_back(clock):
    store = MemoryStore(clock)
    shaper = Shaper("1/s", store=store, name="api")
    shaper.reserve()
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(shaper.aschedule)
        await clock.asleep(0.1, AsyncAlarm())
        put(store, "api", Override(rate="2/s"))
        await clock.asleep(0.1, AsyncAlarm())
        tasks.cancel_scope.cancel()
    # As if the calls had never come: the second of the first call, of which 0.55 s are now 0.275.
    assert shaper.reserve().delay == pytest.approx(0.45 + 0.55 / 2 - 0.2, abs=1e-3)
    assert shaper.reserve().delay == pytest.approx(0.45 + 0.55 / 2 - 0.2 + 0.5, abs=1e-3)


def test_a_call_that_leaves_by_new_numbers_is_settled_by_them(clock):
    store = MemoryStore(clock)
    policy = Policy("10/s", store=store, name="api")
    policy.configure("1/s")
    with policy.admit(cost=3) as admission:
        pass
    assert admission.settle(1)
    assert policy.shaper.forecast().first_in == pytest.approx(1.0)


def test_one_of_the_waiting_calls_asks_for_all():
    limits = Limits(Settings("api"), ManualClock(0), hears_all=False)
    first, second = threading.Event(), threading.Event()
    near = threading.Event()
    assert limits.until_us(near, 0, NOTICE_US - 1) > 10**12
    assert QUICK_US <= limits.until_us(first, 1_000, 10**7) - 1_000 <= QUICK_US * 5 // 4
    assert limits.until_us(second, 2_000, 10**8) > 10**12
    limits.discard(first)
    limits.hand_over(2_000)
    assert second.is_set()
    assert not near.is_set(), "a call that leaves soon does not ask"
    limits.discard(second)
    assert limits.until_us(second, 3_000, 10**8) > 3_000 + QUICK_US
    limits.discard(near)
    limits.discard(second)
    assert limits.until_us(second, 0, 10**12) >= 60_000_000, "a call that waits for days asks once a minute"
    second.clear()
    assert limits.until_us(first, 0, 10**12 + 1) > 10**12
    assert not second.is_set()
    assert limits.until_us(near, 0, NOTICE_US - 1) > 10**12
    assert second.is_set(), "and sooner for one that leaves soon"
    limits.discard(second)
    assert limits.until_us(second, 0, 10**12) <= QUICK_US * 5 // 4


def test_a_call_that_was_interrupted_as_it_woke_keeps_no_other_from_asking():
    """Its entry stays behind. By its slot, which comes no more, the others would ask all the time."""
    limits = Limits(Settings("api"), ManualClock(0), hears_all=False)
    gone, waiting = threading.Event(), threading.Event()
    limits.until_us(gone, 0, 10**7)
    assert limits.until_us(waiting, 0, 10**12) > 10**12
    assert 10**7 + 60_000_000 <= limits.until_us(waiting, 10**7, 10**12) < 10**12


@pytest.mark.parametrize("first", [0, 5])
def test_another_process_learns_of_a_change_in_time_for_the_calls_that_leave_next(
    stage, clock, tmp_path, first
):
    """However long others wait in it, and whichever of them has learned of the last change first."""
    crowd = 300
    path = tmp_path / "limits.db"
    with closing(SlowFile(path, clock=clock)) as here, closing(SlowFile(path, clock=clock)) as there:
        shapers = [Shaper("5/s", store=store, name="api") for store in (here, there)]
        # Every tenth waits there.
        slots = [shapers[number % 10 == first].reserve() for number in range(crowd)]
        left = leaving(stage, slots)
        for at, rate in ((1.05, 1), (8.07, 10), (10.5, 1), (17.28, 10), (19.5, 1), (26.49, 10)):
            stage.at(at, partial(put, here, "api", Override(rate=f"{rate}/s")))
        stage.run()
    assert left == slots


@pytest.mark.parametrize("changed_at", [0.6 + step / 200 for step in range(20)])
def test_another_process_learns_of_a_change_before_any_call_moves(
    stage, clock, tmp_path, monkeypatch, changed_at
):
    """However its looks fall, and if all of them are as late as they may be."""
    monkeypatch.setattr("random.randrange", lambda most: most - 1)
    path = tmp_path / "limits.db"
    with closing(SlowFile(path, clock=clock)) as here, closing(SlowFile(path, clock=clock)) as there:
        shapers = [Shaper("50/s", store=store, name="api") for store in (here, there)]
        slots = [shapers[number == 50].reserve() for number in range(60)]
        left = leaving(stage, slots)
        stage.at(changed_at, partial(put, here, "api", Override(rate="500/s")))
        stage.run()
    assert left == slots


def test_every_process_that_notices_a_change_emits_one_event():
    store = MemoryStore(ManualClock(1_000))
    policy = Policy("5/s", store=store, name="api")
    events, done = [], threading.Semaphore(0)

    def note(event):
        if isinstance(event, LimitChanged):
            events.append(event)
            done.release()

    with listen(note):
        policy.configure("20/s", reason="sale")
        assert done.acquire(timeout=PATIENCE_S)
        policy.shaper.reserve()
        policy.configure("20/s", key="a*", reason="plan")
        assert done.acquire(timeout=PATIENCE_S)
        policy.unconfigure()
        assert done.acquire(timeout=PATIENCE_S)
    assert [(one.key, one.limit, one.before, one.reason) for one in events] == [
        (None, "rate 20/s", "", "sale"),
        ("a*", "rate 20/s", "", "plan"),
        (None, "", "rate 20/s", ""),
    ]
    assert "@" in events[0].by
