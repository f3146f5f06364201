"""Calls that are kept from leaving at their slots, as they happen: in loops, threads and several processes.

Tardy is the clock of a process that stands still: a call that sleeps by it is woken later than it should be.
"""

import random
import threading

import anyio
import pytest

from shapekit import GCRA, Adaptive, FixedWindow, ManualClock, MemoryStore, Quota, Shaper
from shapekit._queue import moving as module
from shapekit._queue.moving import LateCalls
from shapekit._runtime import process
from shapekit._runtime.drivers import THREADS, AsyncAlarm, ThreadAlarm, Twin, run
from shapekit.algorithms.queue.slots import Grant
from shapekit.algorithms.queue.wire import CANCEL_MANY, CONFIRM, LATE, RESERVE
from shapekit.clock import StoreClock
from shapekit.errors import QuotaExhaustedError
from tests.algorithms.queue.test_late import worst
from tests.crew import Crew
from tests.stores.interrupts import Interrupt

from .slow_store import FarStore, SlowStore, in_another_process

SECOND = 1_000_000


class Tardy:
    """A clock like another; sleeps that would end within a stall end after it."""

    def __init__(self, clock, begins, ends):
        self._clock = clock
        self._begins, self._ends = begins * SECOND, ends * SECOND
        self.now_us, self.wall_us = clock.now_us, clock.wall_us

    def _stalled(self, seconds):
        until = self._clock.now_us() + seconds * SECOND
        return (self._ends - self._clock.now_us()) / SECOND if self._begins < until < self._ends else seconds

    def sleep(self, seconds, alarm):
        self._clock.sleep(self._stalled(seconds), alarm)

    async def asleep(self, seconds, alarm):
        await self._clock.asleep(self._stalled(seconds), alarm)


def process_of(store, clock=None):
    """The same truth, for another process; with a clock of its own."""
    other = in_another_process(store)
    if clock is not None:
        other.clock = clock
    return other


def departures(stage):
    return [round(1_000 * SECOND + left * SECOND) for left in stage.times]


def test_a_blocked_loop_spreads_what_it_has_missed(stage, clock):
    shaper = Shaper("50/s", clock=clock)
    for name in range(80):
        stage.wait_for(shaper, name)
    stage.at(0.21, lambda: clock.sleep(0.3, threading.Event()))
    stage.run()
    assert stage.names == list(range(80))
    assert worst(departures(stage), SECOND) <= 51
    # Of what was missed nothing is made up: from then on they follow one another as before.
    assert stage.times[11:] == pytest.approx([0.52 + 0.02 * number for number in range(69)], abs=0.041)


@pytest.mark.parametrize("seed", range(20))
def test_a_loop_that_is_blocked_again_and_again_keeps_the_order(stage, clock, seed):
    """Also of calls that are late again at their new slots, or have learned that the queue has moved."""
    chance = random.Random(seed)
    shaper = Shaper("200/s", clock=clock)
    for name in range(100):
        stage.wait_for(shaper, name)
    at = 0.0
    while at < 1:
        at += chance.uniform(0.01, 0.08)
        stage.at(at, lambda: clock.sleep(chance.uniform(0.002, 0.04), threading.Event()))
    stage.run()
    assert stage.names == list(range(100))
    assert worst(departures(stage), 100_000) <= 21 + 2


def test_threads_of_a_process_that_stood_still_are_spread_too():
    clock = ManualClock(1_000)
    shaper = Shaper("50/s", clock=clock)
    left = []

    def work():
        shaper.schedule()
        left.append(clock.now_us())

    crew = Crew()
    for number in range(20):
        crew.start(work)
        while number and shaper.core.sleepers.sleeping < number:
            pass
    # All at once, as after a stop: no sleeper is woken on the way.
    clock._now_us += 300_000
    while len(left) < 20:
        clock.advance(0.005)
    crew.join()
    assert worst(left, 100_000) <= 6
    # The last slot was after 380 ms; some fourteen were missed.
    assert 640_000 <= max(left) - 1_000 * SECOND <= 780_000


@pytest.mark.parametrize("kind", [SlowStore, FarStore])
def test_one_process_of_two_stands_still(stage, clock, kind):
    store = kind(clock, 0.001)
    processes = [Shaper("50/s", store=store, name="api")]
    tardy = process_of(store, Tardy(clock, 1_000.2, 1_000.5))
    processes.append(Shaper("50/s", store=tardy, name="api"))
    for name in range(60):
        stage.wait_for(processes[name % 2], name, at=name / 10_000)
    stage.run()
    assert worst(departures(stage), SECOND) <= 51
    assert worst(departures(stage), 200_000) <= 12
    first = [left for name, left in stage.left if name % 2 == 0]
    assert first == sorted(first)
    assert [name for name, _ in stage.left if name % 2] == list(range(1, 60, 2))
    missed = 8
    assert max(stage.times) == pytest.approx(59 / 50 + missed / 50, abs=0.045)


def test_calls_late_together_under_further_limits_leave_one_after_the_other(stage, clock):
    store = SlowStore(clock, 0.002)
    shaper = Shaper("20/s", gates=[GCRA("4/s", burst=1)], name="api", store=store)
    for name in range(8):
        stage.wait_for(shaper, name, at=name / 100)
    stage.at(0.4, lambda: clock.advance(0.9))
    stage.run()
    assert stage.names == list(range(8))
    assert stage.times == pytest.approx([0, 0.25, 1.3, 1.55, 1.8, 2.05, 2.3, 2.55], abs=0.01)


def test_calls_that_are_late_together_share_a_trip(stage, clock):
    store = SlowStore(clock, 0.001)
    shaper = Shaper("100/s", store=process_of(store, Tardy(clock, 1_000.1, 1_000.3)), name="api")
    for name in range(40):
        stage.wait_for(shaper, name)
    stage.run()
    assert stage.names == sorted(stage.reservations, key=lambda name: stage.reservations[name].departs_at)
    assert 1 <= store.trips[LATE] <= 4


def test_an_answer_that_was_long_on_its_way_does_not_let_two_calls_leave_together(stage, clock):
    """As at a cold start: the first call gets to know late that it may leave."""

    delays = [0.15]

    class OnceLate(FarStore):
        def abind(self, name, program, operation):
            ask = super().abind(name, program, operation)

            async def late(*args):
                answer = await ask(*args)
                if operation is RESERVE and delays:
                    await self.clock.asleep(delays.pop(), AsyncAlarm())
                return answer

            return late

    store = OnceLate(clock, 0.002)
    for name in range(6):
        stage.wait_for(Shaper("20/s", store=process_of(store), name="api"), name, at=name / 1_000)
    stage.run()
    gaps = [after - before for before, after in zip(stage.times, stage.times[1:], strict=False)]
    assert len(gaps) == 5
    assert min(gaps) > 0.045
    assert store.trips[LATE] == 1


def test_a_call_that_leaves_at_once_makes_no_second_trip_where_answers_are_quick(stage, clock):
    store = FarStore(clock, 0.008)
    shaper = Shaper("10/s", store=store, name="api")
    for name in range(5):
        stage.wait_for(shaper, name, at=name)
    stage.run()
    assert store.trips == {RESERVE: 5}


def test_a_slow_answer_from_far_away_is_no_stall(stage, clock):
    store = FarStore(clock, 0.05)
    shaper = Shaper("100/s", store=store, name="api")
    for name in range(60):
        stage.wait_for(shaper, name, at=name / 50)
    stage.run()
    assert len(stage.left) == 60
    assert store.trips[LATE] <= 2


@pytest.mark.parametrize("apart_us", [0, 200])
def test_a_near_store_is_not_far_away_because_a_stall_or_a_crowd_delays_many_answers(apart_us):
    """Late calls are not reported to a far store: all that a blocked loop had missed left together."""
    store_clock = StoreClock(decides=True)
    for number in range(3):
        store_clock.took(number * SECOND, number * SECOND + 400)
    for number in range(1, 51):
        store_clock.took(3 * SECOND, 3 * SECOND + 10_000 + number * apart_us)
    assert store_clock.trip_us <= 430


def test_a_store_is_not_far_away_because_its_first_answers_are_slow():
    """A process that starts asks several questions at once, while it connects and loads scripts."""
    store_clock = StoreClock(decides=True)
    for number in range(10):
        store_clock.took(number, 100_000 + number)
    assert not store_clock.trip_us
    store_clock.took(SECOND, SECOND + 400)
    assert store_clock.trip_us == 400


def test_a_store_that_moves_far_away_is_known_to_be_far_after_a_while():
    store_clock = StoreClock(decides=True)
    for number in range(3):
        store_clock.took(number * SECOND, number * SECOND + 400)
    for number in range(3, 80):
        store_clock.took(number * SECOND, number * SECOND + 20_000)
    assert store_clock.trip_us == 20_000


def test_a_waiting_call_is_not_refused_because_another_was_late(stage, clock):
    store = SlowStore(clock, 0.001)
    shaper = Shaper("50/s", store=store, name="api", max_wait=0.6)
    tardy = Shaper("50/s", store=process_of(store, Tardy(clock, 1_000.1, 1_000.3)), name="api")
    for name in range(30):
        stage.wait_for(tardy if name < 10 else shaper, name, at=name / 10_000)
    stage.run()
    assert stage.errors == {}
    assert max(stage.times) > 0.6


def test_a_waiting_call_is_refused_because_of_a_hold(stage, clock):
    store = SlowStore(clock, 0.001)
    shaper = Shaper("50/s", store=store, name="api", max_wait=0.6)
    for name in range(30):
        stage.wait_for(shaper, name)
    stage.at(0.3, lambda: Shaper("50/s", store=process_of(store), name="api").ahold(0.5))
    stage.run()
    assert stage.errors
    assert all(isinstance(error, Exception) for _, error in stage.errors.values())


class Directly:
    """In place of prefetched slots, which a thread takes: another one on a trip of its own."""

    def __init__(self, shaper):
        core = shaper.core
        self._take, self._give_back = core.grant, core.store.twin(core.name, core.queue, CANCEL_MANY)

    async def exchange(self, driver, key, missed):
        await driver.ask(self._give_back, key, (missed,))
        return Grant(*await driver.ask(self._take, key, (missed.cost, None, process.fresh_id())))


def with_slots_ahead(store, **options):
    shaper = Shaper("50/s", store=store, name="api", **options)
    shaper.core.waiter._prefetch = Directly(shaper)
    return shaper


@pytest.mark.parametrize("kind", [SlowStore, FarStore])
def test_with_slots_ahead_late_calls_take_others_without_a_trip_for_late_calls(stage, clock, kind):
    store = kind(clock, 0.002)
    processes = [with_slots_ahead(process_of(store)) for _ in range(2)]
    for name in range(60):
        stage.wait_for(processes[name % 2], name, at=name / 10_000)
    stage.at(0.2, lambda: clock.sleep(0.3, threading.Event()))
    stage.run()
    assert len(stage.left) == 60
    assert store.trips[LATE] == 0
    assert worst(departures(stage), SECOND) <= 51
    assert worst(departures(stage), 100_000) <= 6
    # Nothing is made up for the slots that were missed, and each reservation shows its last slot.
    missed = 14
    assert max(stage.times) == pytest.approx((59 + missed) / 50, abs=0.045)
    lateness = [1_000 + at + store.ahead_s - stage.reservations[name].departs_at for name, at in stage.left]
    assert 0 <= min(lateness) <= max(lateness) <= 0.015
    assert stage.reservations[12].delay == pytest.approx(dict(stage.left)[12], abs=0.01)


def test_a_late_call_is_not_refused_for_the_slot_that_it_takes_instead(stage, clock):
    """Others wait longer than it would have, and it takes the next slot behind them."""
    store = SlowStore(clock, 0.002)
    shaper = with_slots_ahead(process_of(store, Tardy(clock, 1_000.1, 1_000.4)), max_wait=0.3)
    other = Shaper("50/s", store=process_of(store), name="api")
    for name in range(110):
        stage.wait_for(shaper if name < 10 else other, name, at=name / 10_000)
    stage.run()
    assert (len(stage.left), stage.errors) == (110, {})
    assert min(dict(stage.left)[name] for name in range(5, 10)) > 2


@pytest.mark.parametrize("gate", [FixedWindow("20/h"), Quota("20/rolling:1h")])
def test_under_further_limits_a_missed_slot_counts_no_more(stage, clock, gate):
    store = SlowStore(clock, 0.002)
    shaper = with_slots_ahead(store, gates=(gate,))
    for name in range(20):
        stage.wait_for(shaper, name)
    stage.at(0.1, lambda: clock.sleep(0.3, threading.Event()))
    stage.run()
    assert (len(stage.left), stage.errors) == (20, {})
    assert max(stage.times) < 1
    assert worst(departures(stage), 100_000) <= 6


def test_the_rest_of_a_quota_may_go_to_another_call(stage, clock):
    store = SlowStore(clock, 0.002)
    shaper = with_slots_ahead(store, gates=(Quota("6/rolling:1h"),))
    give_back = shaper.core.waiter._prefetch._give_back

    async def taken_by_another(driver, key, missed):
        await driver.ask(give_back, key, (missed,))
        assert shaper.reserve()
        return Grant(*await driver.ask(shaper.core.grant, key, (1, None, process.fresh_id())))

    shaper.core.waiter._prefetch.exchange = taken_by_another
    for name in range(6):
        stage.wait_for(shaper, name)
    stage.at(0.09, lambda: clock.sleep(0.3, threading.Event()))
    stage.run()
    assert len(stage.left) == 5
    [(_, error)] = stage.errors.values()
    assert isinstance(error, QuotaExhaustedError)
    assert not shaper.reserve()


def test_where_each_slot_has_passed_before_the_answer_a_call_leaves_at_last(stage, clock):
    store = SlowStore(clock, 0.002)
    shaper = with_slots_ahead(store)
    for name in range(4):
        stage.wait_for(shaper, name)

    def slow():
        store._half_s = 0.5

    stage.at(0.03, slow)
    stage.run()
    assert len(stage.left) == 4
    assert store.trips[RESERVE] <= 4 * 9


def test_a_late_call_that_is_cancelled_keeps_no_other_from_leaving(stage, clock):
    store = SlowStore(clock, 0.004)
    shaper = Shaper("100/s", store=process_of(store, Tardy(clock, 1_000.1, 1_000.3)), name="api")
    scopes = []

    async def cancelled():
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await shaper.aschedule()

    for _ in range(10):
        stage.at(0, cancelled)
    for name in range(30):
        stage.wait_for(shaper, name)
    for microseconds in range(300_000, 320_000, 700):
        stage.at(microseconds / SECOND, lambda: scopes and scopes.pop(0).cancel())
    stage.run()
    assert sorted(stage.names) == list(range(30))
    assert worst(departures(stage), SECOND) <= 101
    assert shaper.core.waiter._late_calls.under_way == {}


def test_a_call_that_is_interrupted_on_a_trip_keeps_no_other_from_the_next():
    """At each place where a signal handler may raise."""
    for at in range(1, 60):
        trips = []

        def late(key, calls, trips=trips):
            trips.append(calls)
            return tuple((1, 1) for _ in calls)

        late_calls = LateCalls(Twin(late, None))
        try:
            with Interrupt(at):
                run(late_calls.ask, "key", 1, (7, 1, 1, 1))
        except KeyboardInterrupt:
            pass
        else:
            break
        assert late_calls.under_way == {}
        assert run(late_calls.ask, "key", 2, (7, 2, 1, 2)) == (1, 1)
        assert len(trips) <= 2
    assert 10 < at < 59


def test_a_late_call_that_is_interrupted_while_another_makes_the_trip_leaves_nothing_behind(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    late_calls = LateCalls(Twin(None, None))
    late_calls.under_way["key"] = module._LateCall(0, (7, 1, 1, 1), threading.Event())
    monkeypatch.setattr(ThreadAlarm, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(late_calls.ask, "key", 1, (7, 1, 1, 1))
    assert late_calls.waiting == {}


def test_a_trip_whose_loop_has_stopped_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "STUCK_S", 0.01)
    late_calls = LateCalls(Twin(lambda key, calls: tuple((1, 1) for _ in calls), None))
    late_calls.under_way["key"] = module._LateCall(0, (7, 1, 1, 1), threading.Event())
    assert run(late_calls.ask, "key", 1, (7, 1, 1, 1)) == (1, 1)


def test_slots_of_two_stores_do_not_go_on_one_trip():
    """Those that were granted while the store was gone are moved where they were granted."""
    trips = []

    def late(key, calls):
        trips.append(calls)
        return tuple((1, 1) for _ in calls)

    late_calls = LateCalls(Twin(late, None))
    late_calls.waiting["key"] = [
        module._LateCall(1, (-9, 1, 1, 1), threading.Event()),
        module._LateCall(2, (-8, 1, 1, 1), threading.Event()),
    ]
    run(late_calls.ask, "key", 3, (7, 1, 1, 1))
    assert trips == [((-9, 1, 1, 1), (-8, 1, 1, 1)), ((7, 1, 1, 1),)]


def test_calls_of_a_memory_store_are_prompt(clock):
    store = MemoryStore(clock)
    shaper = Shaper("10/s", store=store)
    assert shaper.core.waiter.is_prompt(shaper.reserve().granted)
    assert THREADS.loop() is None
    assert CONFIRM.is_read


def blocked_until(stage, clock, seconds):
    """From now on nothing runs in this process until then."""
    clock.sleep(seconds - stage.now, threading.Event())


def shaper_of(rate, *, is_adaptive, **options):
    """At this rate, or at rates that begin with it."""
    if is_adaptive:
        return Shaper(adaptive=Adaptive(min=rate, max="10/s"), **options)
    return Shaper(rate, **options)


@pytest.mark.parametrize("is_adaptive", [False, True])
@pytest.mark.parametrize("store_of", [MemoryStore, lambda clock: SlowStore(clock, 0.001)])
def test_a_hold_is_obeyed_by_a_late_call_that_waits_for_its_new_slot(stage, clock, store_of, is_adaptive):
    shaper = shaper_of("12/min", is_adaptive=is_adaptive, store=store_of(clock), name="api")
    for name in range(4):
        stage.wait_for(shaper, name, at=name / 100)
    stage.at(0.3, lambda: blocked_until(stage, clock, 8.9))  # the slot of the second one was at 5 s
    stage.at(9.1, lambda: shaper.ahold(20))
    stage.run()
    assert stage.names == [0, 1, 2, 3]
    assert stage.times[1] == pytest.approx(29.1, abs=0.3)
    assert all(later - left >= 4.9 for left, later in zip(stage.times, stage.times[1:], strict=False))


@pytest.mark.parametrize("is_adaptive", [False, True])
@pytest.mark.parametrize("store_of", [MemoryStore, lambda clock: SlowStore(clock, 0.001)])
def test_a_call_that_learns_that_time_stands_still_for_it_does_not_move(stage, clock, store_of, is_adaptive):
    """As where the call asks whether an operator has changed the limit meanwhile."""
    shaper = shaper_of("12/min", is_adaptive=is_adaptive, store=store_of(clock), name="api")
    for name in range(2):
        stage.wait_for(shaper, name, at=name / 100)
    stage.at(0.3, lambda: blocked_until(stage, clock, 8.9))
    stage.run()
    assert stage.times[1] == pytest.approx(10, abs=0.1)
    assert shaper.forecast().first_in == pytest.approx(5 + 1.1, abs=0.1)


@pytest.mark.parametrize("is_adaptive", [False, True])
@pytest.mark.parametrize(
    ("held", "resumed"), [(None, 2.0), (None, 2.5), (None, 2.9), (1.95, 2.0), (2.05, 2.5), (2.05, 2.9)]
)
def test_the_end_of_a_hold_lets_no_call_leave_next_to_a_late_one(stage, clock, resumed, held, is_adaptive):
    """Time stands still until a slot after the late call; a hold may come on top, and end."""
    shaper = shaper_of("1/s", is_adaptive=is_adaptive, clock=clock)
    for name in range(5):
        stage.wait_for(shaper, name)
    stage.at(0.9, lambda: blocked_until(stage, clock, 1.9))
    if held is not None:
        stage.at(held, lambda: shaper.ahold(20))
    stage.at(resumed, shaper.aresume)
    stage.run()
    assert stage.names == [0, 1, 2, 3, 4]
    assert all(later - left >= 0.99 for left, later in zip(stage.times, stage.times[1:], strict=False))
    assert stage.times[-1] < 10


def story(stage, clock, seed, *, is_adaptive, store_of, acts):
    """Calls of one process at 1/s, which stalls, holds and resumes by the seed."""
    rnd = random.Random(seed)
    shaper = shaper_of("1/s", is_adaptive=is_adaptive, store=store_of(clock), name="api")
    calls = rnd.randint(3, 12)
    for name in range(calls):
        stage.wait_for(shaper, name, at=name / 100)
    for _ in range(rnd.randint(1, 6)):
        at, length, act = rnd.uniform(0.3, 12), rnd.uniform(0.2, 3), rnd.choice(acts)
        if act == "stall":
            stage.at(at, lambda until=at + length: blocked_until(stage, clock, until))
        elif act == "hold":
            stage.at(at, lambda length=length: shaper.ahold(2 * length))
        else:
            stage.at(at, shaper.aresume)
    stage.run()
    assert stage.names == list(range(calls))
    # A call may be late by three quarters of a slot without moving the next.
    for count in range(1, calls):
        pairs = zip(stage.times, stage.times[count:], strict=False)
        assert min(later - earlier for earlier, later in pairs) >= count - 0.76


@pytest.mark.parametrize("is_adaptive", [False, True])
@pytest.mark.parametrize("store_of", [MemoryStore, lambda clock: SlowStore(clock, 0.001)])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("seed", range(40))
def test_whatever_stalls_and_holds_calls_keep_their_order_and_distance(
    stage, clock, seed, store_of, is_adaptive
):
    acts = ("stall", "stall", "hold", "resume")
    story(stage, clock, seed, is_adaptive=is_adaptive, store_of=store_of, acts=acts)


# In the last one, the new slot of a call has passed when the answer comes.
@pytest.mark.parametrize("seed", [*range(40), 650])
def test_whatever_stalls_calls_keep_their_order_and_distance(stage, clock, seed):
    """Also where answers reach several calls at once, and trio resumes them in any order."""
    store_of = lambda clock: SlowStore(clock, 0.001)  # noqa: E731 - one store
    story(stage, clock, seed, is_adaptive=False, store_of=store_of, acts=("stall",))
