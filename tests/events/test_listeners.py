"""Listeners: any callable, at any time, whatever it does; and it costs other calls nothing."""

import copy
import logging
import pickle
import threading

import anyio
import pytest
from anyio import get_current_task

from shapekit import GCRA, Gate, MemoryStore, Policy, Shaper, events, listen, shaped
from shapekit._runtime.process import SWITCH
from shapekit.events import Cancelled, Departed, Held, Reserved
from shapekit.testing import FaultyStore

from .calls import WAYS


def test_a_listener_receives_events_of_a_shaper_or_a_policy_or_everything(clock):
    policy, other = (Policy("10/s", name=name, clock=clock) for name in ("one", "other"))
    received = {"shaper": [], "policy": [], "everywhere": []}
    with (
        policy.shaper.listen(received["shaper"].append),
        policy.listen(received["policy"].append),
        listen(received["everywhere"].append),
    ):
        policy.shaper.reserve()
        other.shaper.reserve()
    policy.shaper.reserve()
    assert received["shaper"] == received["policy"] == [Reserved("one", "default", 1, 0.0)]
    assert received["everywhere"] == [
        Reserved("one", "default", 1, 0.0),
        Reserved("other", "default", 1, 0.0),
    ]


def test_listeners_of_the_shaper_are_called_first_and_all_in_the_order_of_registration(policy):
    order = []
    with (
        listen(lambda _: order.append("everywhere")),
        policy.listen(lambda _: order.append("first")),
        policy.listen(lambda _: order.append("second")),
    ):
        policy.shaper.reserve()
    assert order == ["first", "second", "everywhere"]


def test_a_listener_that_is_added_twice_is_called_twice(policy, recorded):
    with policy.listen(recorded.append):
        policy.shaper.reserve()
    assert len(recorded) == 2


def test_closing_ends_the_listening_once(policy):
    notes = []
    listening = policy.listen(notes.append)
    with listen(lambda _: None):
        listening.close()
        listening.close()
        assert SWITCH.loud
        policy.shaper.reserve()
    assert notes == []
    assert not SWITCH.loud


def test_a_listener_may_end_itself_and_add_others(policy):
    notes = []

    def once(event):
        notes.append("once")
        listening.close()
        others.append(policy.listen(lambda _: notes.append("other")))

    others = []
    listening = policy.listen(once)
    policy.shaper.reserve()
    policy.shaper.reserve()
    others[0].close()
    assert notes == ["once", "other"]


def test_a_listener_may_call_what_it_listens_to(policy, recorded):
    def again(event):
        if event.key == "alice":
            policy.shaper.reserve("bob")

    with policy.listen(again):
        policy.shaper.reserve("alice")
    assert [event.key for event in recorded] == ["bob", "alice"]


@pytest.mark.parametrize("way", WAYS)
def test_a_failing_listener_disturbs_no_call_and_is_logged_once(world, policy, way, recorded, caplog):
    def fail(event):
        raise LookupError("no such thing")

    with policy.listen(fail):
        for _ in range(3):
            world.run(policy, way, "alice")
    assert [type(event) for event in recorded] == [Reserved, Departed] * 3
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("shapekit.events", logging.ERROR)
    assert record.exc_info[0] is LookupError
    assert fail.__qualname__ in record.getMessage()


def test_a_listener_that_fails_in_many_threads_at_once_is_logged_once(policy, caplog):
    together = threading.Barrier(8)

    def fail(event):
        together.wait()
        raise LookupError

    with policy.listen(fail):
        threads = [threading.Thread(target=policy.shaper.reserve, args=(str(key),)) for key in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(caplog.records) == 1


def test_each_failing_listener_is_logged(policy, caplog):
    def fail(event):
        raise LookupError

    for _ in range(2):
        with policy.listen(fail):
            policy.shaper.reserve()
    assert len(caplog.records) == 2


class Stop(BaseException):
    """A BaseException that is no Exception, like KeyboardInterrupt."""


@pytest.mark.parametrize("way", WAYS)
def test_a_base_exception_reaches_the_caller_and_the_slot_is_given_back(world, policy, way, recorded):
    def stop(event):
        if isinstance(event, Reserved):
            raise Stop

    policy.shaper.reserve("alice")
    del recorded[:]
    with policy.listen(stop), pytest.raises(Stop):
        world.run(policy, way, "alice")
    assert recorded == [Reserved("stripe", "alice", 1, 0.1), Cancelled("stripe", "alice", 1, True)]
    assert policy.shaper.reserve("alice").delay == 0.1


def test_a_base_exception_reaches_the_caller_of_reserve(world, policy, recorded):
    def stop(event):
        if not isinstance(event, Cancelled):
            raise Stop

    with policy.listen(stop):
        with pytest.raises(Stop):
            world.do(policy.shaper.reserve, "alice")
        with pytest.raises(Stop):
            world.do(policy.shaper.hold, "1s", key="alice")
    assert [type(event) for event in recorded] == [Reserved, Cancelled, Held]


def test_an_interrupted_refusal_reports_no_cancellation(world, policy, recorded):
    def stop(event):
        raise Stop

    policy.shaper.reserve("alice")
    del recorded[:]
    with policy.listen(stop), pytest.raises(Stop):
        world.do(policy.shaper.reserve, "alice", max_wait=0)
    assert len(recorded) == 1
    assert policy.shaper.reserve("alice").delay == 0.1


def test_only_a_callable_can_listen(refused, policy):
    async def later(event):
        pass

    class Later:
        async def __call__(self, event):
            pass

    for listener in (None, "print", later, Later()):
        for listening in (policy.listen, policy.shaper.listen, listen):
            refused(lambda: listening(listener), "listener")  # noqa: B023 - called at once


def test_any_callable_of_one_event_can_listen(policy):
    class Quiet:
        def __call__(self, event):
            notes.append(event)

        def method(self, event):
            notes.append(event)

    notes = []
    for listener in (Quiet(), Quiet().method, notes.append):
        with policy.listen(listener):
            policy.shaper.reserve()
    assert len(notes) == 3


def test_a_listener_is_called_in_the_thread_of_the_caller(policy):
    threads = []
    with policy.listen(lambda _: threads.append(threading.get_ident())):
        thread = threading.Thread(target=policy.shaper.schedule)
        thread.start()
        thread.join()
    assert threads == [thread.ident] * 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_listener_is_called_in_the_task_of_the_caller(clock, backend):
    # Through an awaited store, whose answers arrive in the task that asked.
    shaper = Shaper("10/s", store=FaultyStore(MemoryStore(clock)), name="stripe")
    notes, tasks = [], []

    async def call(key):
        tasks.append((key, get_current_task().id))
        await shaper.aschedule(key)

    async def main():
        async with anyio.create_task_group() as group:
            for key in "ab":
                group.start_soon(call, key)

    shaper.reserve("a")
    shaper.reserve("b")
    with shaper.listen(lambda event: notes.append((event.key, get_current_task().id))):
        anyio.run(main, backend=backend)
    assert set(notes) == set(tasks)
    assert len(notes) == 4


def test_listeners_may_come_and_go_while_others_are_called(clock):
    """A lasting listener receives every event, in order; listeners that come and go raise nothing."""
    shaper = Shaper("1_000_000/s", burst=1_000, clock=clock, name="stripe")
    stays, done = [], threading.Event()

    def come_and_go():
        while not done.is_set():
            with shaper.listen(lambda _: None), listen(lambda _: None):
                pass

    with shaper.listen(stays.append):
        fickle = [threading.Thread(target=come_and_go) for _ in range(2)]
        for thread in fickle:
            thread.start()
        for _ in range(300):
            shaper.schedule()
        done.set()
        for thread in fickle:
            thread.join()
    assert [type(event) for event in stays] == [Reserved, Departed] * 300


def test_no_listener_is_lost_or_left_where_many_come_and_go_at_once(policy, restless):
    listenings, calls = [[] for _ in range(4)], []

    def come(number):
        for _ in range(300):
            listenings[number].append(policy.listen(lambda _: calls.append(number)))

    def go(number):
        for listening in listenings[number]:
            listening.close()

    for act, expected in ((come, 4 * 300), (go, 0)):
        threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del calls[:]
        policy.shaper.reserve()
        assert len(calls) == expected


# events


EXAMPLES = [
    events.Reserved("stripe", "alice", 1, 0.5),
    events.Departed("stripe", "alice", 1, 0.5, 0.0),
    events.Refused("stripe", "alice", 1, "queue_full", 0.5, False),
    events.Cancelled("stripe", "alice", 1, True),
    events.Measured("stripe", "alice", 1, 0.5, None),
    events.Held("stripe", "alice", 30.0, 30.0),
    events.Exhausted("stripe", "alice", 60.0),
    events.Resumed("stripe", "alice", 0.25),
    events.Settled("stripe", "alice", 5, 7),
    events.RateChanged("stripe", "alice", 9.2, 10.0),
    events.LimitChanged("stripe", None, "rate 20/s", "", "ann@host", "sale"),
    events.BudgetReached("stripe", "alice", "quota", 0.8, 800, 1_000),
    events.StoreFailed("stripe", "alice", "gone"),
    events.StoreLost("redis", "gone"),
    events.StoreBack("redis", 5.0),
]


def test_the_examples_are_all_there_is():
    assert {type(event) for event in EXAMPLES} == set(events.Event.__args__)
    assert {type(event).__name__ for event in EXAMPLES} <= set(events.__all__)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_is_a_value(event):
    fields = vars(event)
    same = type(event)(**fields)
    assert same == event == pickle.loads(pickle.dumps(event)) == copy.deepcopy(event)
    assert hash(same) == hash(event)
    assert repr(event) == f"{type(event).__name__}({', '.join(f'{k}={v!r}' for k, v in fields.items())})"
    assert [other for other in EXAMPLES if other == event] == [event]
    first = next(iter(fields))
    with pytest.raises(AttributeError, match="immutable"):
        setattr(event, first, "other")
    with pytest.raises(AttributeError, match="immutable"):
        delattr(event, first)
    for wrong in ([], [*fields.values(), 1]):
        with pytest.raises(TypeError, match=f"{type(event).__name__} takes policy, |takes store, "):
            type(event)(*wrong)
    with pytest.raises(TypeError, match="each of them once"):
        type(event)(*fields.values(), **{first: 1})


def test_events_are_matched():
    match EXAMPLES[0]:
        case events.Reserved(policy, key="alice", delay=delay):
            assert (policy, delay) == ("stripe", 0.5)
        case _:
            raise AssertionError


# no listeners


def test_without_listeners_no_event_is_made(world, policy, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("an event was made")

    monkeypatch.setattr(events.Reserved.__base__, "__init__", fail)
    policy.shaper.reserve("alice")
    for way in WAYS:
        world.run(policy, way, "alice")
        with pytest.raises(TimeoutError):
            world.do(policy.shaper.schedule, "alice", timeout=0)
        world.do(policy.shaper.hold, "1s", key="alice")
        world.do(policy.shaper.resume, key="alice")
    with listen(lambda _: None), pytest.raises(AssertionError):
        policy.shaper.reserve("alice")


def test_listeners_of_another_shaper_cause_no_events_here(policy, clock, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("an event was made")

    monkeypatch.setattr(events.Reserved.__base__, "__init__", fail)
    with Shaper("1/s", clock=clock).listen(print):
        for way in WAYS[:2]:
            policy.shaper.hold("1s", key=way)
        policy.shaper.reserve("alice")
        policy.shaper.schedule("alice")
        assert not policy.shaper.reserve("alice", max_wait=0)


def test_gates_report_no_events(clock, recorded):
    gate = Gate(GCRA("10/s", burst=1), clock=clock)
    gate.check()
    gate.check()
    assert recorded == []


def test_a_shaped_function_reports_to_the_listeners_of_its_policy(clock):
    call = shaped("10/s", clock=clock, name="stripe")(lambda: None)
    notes = []
    with call.policy.listen(notes.append):
        call()
    assert notes == [Reserved("stripe", "default", 1, 0.0), Departed("stripe", "default", 1, 0.0, 0.0)]
