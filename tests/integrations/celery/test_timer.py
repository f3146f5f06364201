"""The timer that wakes a worker for its messages."""

import threading
from functools import partial
from types import SimpleNamespace

from celery.utils.timer2 import Timer
from kombu.asynchronous import Hub

from shapekit.integrations.celery.worker import Alarms, PromptTimer, timer_of


def test_an_earlier_entry_wakes_a_sleeping_thread():
    timer = PromptTimer(max_interval=60.0)
    sleeps, due = threading.Event(), threading.Event()
    timer.call_after(0.0, sleeps.set)
    timer.call_after(60.0, due.clear)
    assert sleeps.wait(20)
    timer.call_after(0.001, due.set)
    assert due.wait(20)


def test_an_event_loop_that_has_much_to_do_does_not_oversleep():
    hub, rang = Hub(), []
    alarms = Alarms(hub.timer)
    for number in range(15):
        alarms.call_after(0.0, partial(rang.append, number))
    alarms.cancel(alarms.call_after(0.0, partial(rang.append, "cancelled")))
    alarms.call_after(0.5, partial(rang.append, "later"))
    assert hub.fire_timers() <= 0.5
    assert rang == list(range(15))


def test_a_failing_call_delays_no_other():
    hub, rang = Hub(), []
    alarms = Alarms(hub.timer)
    alarms.call_after(0.0, partial(int, "none"))
    alarms.call_after(0.0, partial(rang.append, "after it"))
    for _ in range(2):
        hub.fire_timers()
    assert rang == ["after it"]


def test_each_worker_has_the_timer_that_wakes_it_in_time():
    own = Hub().timer
    assert type(timer_of(SimpleNamespace(timer=Timer()))) is PromptTimer
    assert type(timer_of(SimpleNamespace(timer=own))) is Alarms
    green = type("Green", (type(own),), {})()
    assert timer_of(SimpleNamespace(timer=green)) is green


def test_earlier_entries_ring_earlier():
    hub, rang = Hub(), []
    alarms = Alarms(hub.timer)
    alarms.call_after(60.0, partial(rang.append, "later"))
    alarms.call_after(0.0, partial(rang.append, "now"))
    hub.fire_timers()
    assert rang == ["now"]


def test_an_entry_that_celery_cancels_with_a_connection_delays_no_later_one():
    hub, rang = Hub(), []
    alarms = Alarms(hub.timer)
    alarms.call_after(0.0, partial(rang.append, "while it connected"))
    for due in hub.timer._queue:
        hub.timer.cancel(due.entry)
    alarms.call_after(0.0, partial(rang.append, "with the next connection"))
    hub.fire_timers()
    assert rang == ["while it connected", "with the next connection"]
