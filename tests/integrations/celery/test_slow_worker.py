"""A worker that looks at messages hardly faster than their slots follow one another, in virtual time.

Messages that have all missed their slots must not go on missing the next ones in turn.
"""

import heapq
import threading
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count, cycle
from math import ceil
from types import SimpleNamespace

import pytest
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadPool

from shapekit.integrations.celery import AHEAD_HEADER, SlotHeader
from shapekit.integrations.celery import worker as module
from shapekit.integrations.celery.parking import LATE_S
from shapekit.integrations.celery.worker import Alarms, Batches, Delivery, MessageBuffer
from tests.algorithms.queue.test_late import worst

from .eager import Eager

LOST_S = 100.0
"""After this time no message is looked at any more."""


class Entry(list):
    """An instant, a number, and a call."""

    canceled = False


class Timer:
    """Makes the calls that are due when the clock has reached their time."""

    def __init__(self, clock):
        self._clock = clock
        self._due = []
        self._numbers = count()

    def call_after(self, length_s, call):
        entry = Entry([self._clock.now() + length_s, next(self._numbers), call])
        heapq.heappush(self._due, entry)
        return entry

    def cancel(self, entry):
        entry.canceled = True

    def run(self, is_over):
        ends = self._clock.now() + LOST_S
        while not is_over() and self._clock.now() < ends:
            entry = heapq.heappop(self._due)
            if not entry.canceled:
                # Whole microseconds, and none too early.
                self._clock.advance(max(0, ceil((entry[0] - self._clock.now()) * 1e6)) / 1e6)
                entry[2]()


class Park:
    """Keeps messages until their slots are near, and has the worker look at them again."""

    has_room = True
    unacknowledged = 0

    def __init__(self, slow):
        self._slow = slow
        self._parked = {}

    def put(self, name, wait_s, message):
        self._parked[name] = (self._slow.clock.now() + wait_s, message)
        return True

    @property
    def next_s(self):
        return min([at for at, _ in self._parked.values()], default=1e9) - self._slow.clock.now()

    def bring_back(self, ahead_s, most, queued_s):
        now = self._slow.clock.now()
        due = sorted((at, name) for name, (at, _) in self._parked.items() if at <= now + ahead_s)[:most]
        due.sort(key=lambda one: one[0] < now - LATE_S)
        for message in [self._parked.pop(name)[1] for _, name in due]:
            self._slow.deliver(message)
        return len(due)

    def shorten(self, group, left_s):
        pass

    def hasten(self, group, version):
        pass


class ParkBehind(Park):
    """Messages that it brings back stand behind `queued_s` of other work in the queue."""

    def __init__(self, slow, queued_s):
        super().__init__(slow)
        self._queued_s = queued_s

    def bring_back(self, ahead_s, most, queued_s):
        now = self._slow.clock.now()
        ahead_s += queued_s.get("queue", 0.0)
        due = [name for name, (at, _) in self._parked.items() if at <= now + ahead_s][:most]
        for at, message in map(self._parked.pop, due):
            message.headers[AHEAD_HEADER] = at - now
            self._slow.timer.call_after(self._queued_s(), partial(self._slow.deliver, message))
        return len(due)


class Slow:
    """A worker's buffer, for which each message is a look of `look_s`; records when tasks start."""

    def __init__(self, clock, monkeypatch, shape, look_s):
        self.clock = clock
        self.look_s = look_s
        self.starts = []
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.now, time=clock.now))
        eager = Eager(clock)
        task = eager.shaped(lambda: None, shape)
        self.shaped = task.shaped
        self._batches = Batches(self.shaped, lambda: None)
        self.timer = Timer(clock)
        qos = SimpleNamespace(value=1, increment_eventually=lambda: 1, decrement_eventually=lambda: None)
        consumer = SimpleNamespace(
            timer=self.timer, app=eager.app, connection_errors=(), channel_errors=(), qos=qos
        )
        self.buffer = MessageBuffer(consumer)
        self.buffer._park = self.park = Park(self)

    def message(self, number, expires_s=None):
        headers = {"id": str(number), "retries": 0}
        if expires_s is not None:
            headers["expires"] = datetime.fromtimestamp(self.clock.now() + expires_s, UTC).isoformat()
        return SimpleNamespace(
            headers=headers,
            delivery_info={"queue": "queue"},
            content_type="application/json",
            payload=((), {}, {}),
            body=b"[]",
        )

    def deliver(self, message):
        self.clock.advance(self.look_s)

        def start():
            if delivery.is_over:
                return  # Celery drops the task
            [slot_header] = [SlotHeader.of(message.headers)]
            # A task that comes a little early waits in the pool; the others use their slots within the grace.
            late_s = self.clock.now() - slot_header.slot
            assert -0.3 <= late_s <= self.shaped.grace_s + 1e-9
            self.starts.append(max(self.clock.now(), slot_header.slot))

        delivery = Delivery(self._batches, message, None, start)
        self.buffer.receive(delivery)


PACED, BOUND = {"rate": "20/s"}, {"rate": "20/s; 30/2s"}


@pytest.mark.parametrize(("shape", "within_s"), [(PACED, 8), (BOUND, 25)])
@pytest.mark.parametrize("look_s", [0.0, 0.001, 0.02, 0.03, 0.036, 0.045, 0.06])
@pytest.mark.parametrize("down_s", [0.05, 0.5, 3.0, 20.0])
def test_messages_leave_at_the_rate_although_all_are_late(
    clock, monkeypatch, shape, within_s, look_s, down_s
):
    slow = Slow(clock, monkeypatch, shape, look_s=0.0)
    for number in range(60):
        slow.deliver(slow.message(number))
    # The worker looks at none of them meanwhile.
    clock.advance(down_s)
    slow.look_s = look_s
    began = clock.now()
    slow.buffer._is_open = True
    slow.buffer._look_in(0.0)
    slow.timer.run(lambda: len(slow.starts) == 60)
    assert len(slow.starts) == 60
    assert max(slow.starts) - began <= within_s
    left = [round(at * 1_000_000) for at in slow.starts]
    assert worst(left, 1_000_000) <= 21
    if shape is BOUND:
        assert worst(left, 2_000_000) <= 31


def test_slots_that_come_while_many_messages_are_brought_back_are_used(clock, monkeypatch):
    slow = Slow(clock, monkeypatch, {"rate": "20/s"}, look_s=0.0)
    slow.buffer._alarms = Alarms(slow.timer)
    for number in range(60):
        slow.deliver(slow.message(number))
    # A look at the due messages takes longer than the distance of two slots, or the grace of one.
    slow.look_s = 0.02
    slow.buffer._is_open = True
    slow.buffer._look_in(0.0)
    slow.timer.run(lambda: len(slow.starts) == 60)
    assert slow.starts == pytest.approx([number / 20 for number in range(60)], abs=slow.look_s)


def test_no_task_waits_behind_tasks_that_expire_before_their_slots(clock, monkeypatch):
    slow = Slow(clock, monkeypatch, {"rate": "1/s"}, look_s=0.0)
    slow.buffer._is_open = True
    slow.buffer._look_in(0.0)
    for number in range(60):
        slow.deliver(slow.message(number, expires_s=3.5))
    slow.deliver(slow.message(60))
    slow.timer.run(lambda: clock.now() > 10)
    assert slow.starts == pytest.approx([0, 1, 2, 3, 4])


def test_a_slow_poll_is_over_before_the_next(clock, monkeypatch):
    """Green pools run both at once, and the server gives the second the messages that it gave the first."""
    slow = Slow(clock, monkeypatch, PACED, look_s=0.0)
    both = threading.Barrier(2)

    def meet(*_):
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return 0

    slow.park.bring_back = meet
    polls = [threading.Thread(target=slow.buffer._bring_back) for _ in range(2)]
    for poll in polls:
        poll.start()
    for poll in polls:
        poll.join()
    assert both.broken


def test_a_poll_that_is_due_during_another_comes_after_it(clock, monkeypatch):
    slow = Slow(clock, monkeypatch, PACED, look_s=0.0)
    notes = []

    def bring_back(*arguments):
        notes.append(arguments)
        if len(notes) == 1:
            slow.buffer._bring_back()
            assert len(notes) == 1
        return 0

    slow.park.bring_back = bring_back
    slow.buffer._is_open = True
    slow.buffer._bring_back()
    slow.timer.run(lambda: len(notes) == 2)
    assert clock.now() <= module.LEAST_LOOK_S


@pytest.mark.parametrize(("pool", "starts"), [(ThreadPool, [0.0, 0.05]), (SoloPool, [0.0])])
def test_a_due_task_starts_between_others_that_come_back_unless_it_would_delay_them(
    clock, monkeypatch, pool, starts
):
    slow = Slow(clock, monkeypatch, PACED, look_s=0.0)
    slow.buffer._alarms = Alarms(slow.timer)
    slow.park.take_up = lambda tags: None
    given = []
    monkeypatch.setattr(module, "park_of", lambda *arguments: given.append(arguments[-1]) or slow.park)
    monkeypatch.setattr(slow.shaped.policy.shaper.core.store, "shared", True)
    task = SimpleNamespace(shaped=slow.shaped)
    slow.buffer._consumer.app = SimpleNamespace(tasks={"task": task})
    slow.buffer._consumer.task_consumer = SimpleNamespace(queues=[])
    slow.buffer._consumer.connection = SimpleNamespace(transport=SimpleNamespace(driver_type="redis"))
    slow.buffer._consumer.pool = pool()
    slow.buffer.open()
    for number in range(2):
        slow.deliver(slow.message(number))
    clock.advance(0.05)
    given[0]()
    assert slow.starts == starts


@pytest.mark.parametrize("error", [KeyError, ConnectionError])
def test_a_delivery_raises_only_the_lost_connections_of_due_calls(clock, monkeypatch, caplog, error):
    slow = Slow(clock, monkeypatch, PACED, look_s=0.0)
    slow.buffer._alarms = Alarms(slow.timer)

    def fail():
        raise error

    slow.buffer._alarms.call_after(0.0, fail)
    with pytest.raises(error) if error is ConnectionError else nullcontext():
        slow.deliver(slow.message(0))
    assert slow.starts == [0.0]
    assert ("could not be started" in caplog.text) == (error is KeyError)


def test_missed_slots_of_a_held_key_do_not_all_come_when_the_hold_ends(clock, monkeypatch):
    slow = Slow(clock, monkeypatch, PACED, look_s=0.0)
    for number in range(20):
        slow.deliver(slow.message(number))
    clock.advance(2.0)
    slow.shaped.policy.shaper.hold(5.0)
    slow.buffer._is_open = True
    slow.buffer._look_in(0.0)
    slow.timer.run(lambda: len(slow.starts) == 20)
    assert min(slow.starts[1:]) >= 7.0
    assert worst([round(at * 1_000_000) for at in slow.starts], 1_000_000) <= 21
    assert max(slow.starts) <= 8.1


@pytest.mark.parametrize("queued_s", [[0.0], [3.0], [3.0, 3.0, 0.0], [30.0]])
def test_tasks_behind_other_work_in_the_queue_are_brought_back_earlier_by_that_much(
    clock, monkeypatch, queued_s
):
    """Otherwise all would miss their slots, take others at the end of the line, and miss these, too."""
    slow = Slow(clock, monkeypatch, {"rate": "1/s"}, look_s=0.0)
    lengths = cycle(queued_s)
    slow.buffer._park = slow.park = ParkBehind(slow, lambda: next(lengths))
    slow.buffer._is_open = True
    slow.buffer._look_in(0.0)
    for number in range(20):
        slow.deliver(slow.message(number))
    slow.timer.run(lambda: len(slow.starts) == 20)
    assert len(slow.starts) == 20
    assert max(slow.starts) <= 20 + 2 * max(queued_s)


@pytest.mark.parametrize(("fetched", "unacknowledged", "most"), [(4, 3, 5), (4, 8, 1), (4, 9, 0), (0, 50, 5)])
def test_no_more_tasks_come_back_than_a_worker_has_room_for(
    clock, monkeypatch, fetched, unacknowledged, most
):
    """Tasks that are here may be late, and then they do not wait: they are in the pool already."""
    slow = Slow(clock, monkeypatch, PACED, look_s=0.0)
    slow.buffer._settings.most_waiting = 5
    slow.buffer._consumer.qos.value = fetched
    slow.park.unacknowledged = unacknowledged
    mosts = []
    slow.park.bring_back = lambda ahead_s, most, queued_s: mosts.append(most) or 0
    slow.buffer._bring_back()
    assert mosts == [most] * (most > 0)
