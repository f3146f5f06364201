"""Who listens: anybody, at any time, whatever they do; and it costs nobody else anything."""

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


def test_a_shaper_its_policy_and_everywhere(clock):
    policy, other = (Policy("10/s", name=name, clock=clock) for name in ("one", "other"))
    told = {"shaper": [], "policy": [], "everywhere": []}
    with (
        policy.shaper.listen(told["shaper"].append),
        policy.listen(told["policy"].append),
        listen(told["everywhere"].append),
    ):
        policy.shaper.reserve()
        other.shaper.reserve()
    policy.shaper.reserve()
    assert told["shaper"] == told["policy"] == [Reserved("one", "default", 1, 0.0)]
    assert told["everywhere"] == [Reserved("one", "default", 1, 0.0), Reserved("other", "default", 1, 0.0)]


def test_those_of_the_shaper_are_told_first_and_all_in_the_order_of_coming(policy):
    order = []
    with (
        listen(lambda _: order.append("everywhere")),
        policy.listen(lambda _: order.append("first")),
        policy.listen(lambda _: order.append("second")),
    ):
        policy.shaper.reserve()
    assert order == ["first", "second", "everywhere"]


def test_who_listens_twice_hears_twice(policy, heard):
    with policy.listen(heard.append):
        policy.shaper.reserve()
    assert len(heard) == 2


def test_closing_ends_it_once(policy):
    told = []
    listening = policy.listen(told.append)
    with listen(lambda _: None):
        listening.close()
        listening.close()
        assert SWITCH.loud
        policy.shaper.reserve()
    assert told == []
    assert not SWITCH.loud


def test_a_listener_may_end_itself_and_add_others(policy):
    told = []

    def once(event):
        told.append("once")
        listening.close()
        others.append(policy.listen(lambda _: told.append("other")))

    others = []
    listening = policy.listen(once)
    policy.shaper.reserve()
    policy.shaper.reserve()
    others[0].close()
    assert told == ["once", "other"]


def test_a_listener_may_call_what_it_listens_to(policy, heard):
    def again(event):
        if event.key == "alice":
            policy.shaper.reserve("bob")

    with policy.listen(again):
        policy.shaper.reserve("alice")
    assert [event.key for event in heard] == ["bob", "alice"]


@pytest.mark.parametrize("way", WAYS)
def test_a_listener_that_fails_hurts_nobody_and_is_logged_once(world, policy, way, heard, caplog):
    def fail(event):
        raise LookupError("no such thing")

    with policy.listen(fail):
        for _ in range(3):
            world.run(policy, way, "alice")
    assert [type(event) for event in heard] == [Reserved, Departed] * 3
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("shapekit.events", logging.ERROR)
    assert record.exc_info[0] is LookupError
    assert fail.__qualname__ in record.getMessage()


def test_threads_in_which_a_listener_fails_at_once_log_it_once(policy, caplog):
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


def test_each_that_fails_is_logged(policy, caplog):
    def fail(event):
        raise LookupError

    for _ in range(2):
        with policy.listen(fail):
            policy.shaper.reserve()
    assert len(caplog.records) == 2


class Stop(BaseException):
    """What is no Exception, as KeyboardInterrupt is none."""


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_exception_goes_on_to_the_caller_who_gives_the_turn_back(world, policy, way, heard):
    def stop(event):
        if isinstance(event, Reserved):
            raise Stop

    policy.shaper.reserve("alice")
    del heard[:]
    with policy.listen(stop), pytest.raises(Stop):
        world.run(policy, way, "alice")
    assert heard == [Reserved("stripe", "alice", 1, 0.1), Cancelled("stripe", "alice", 1, True)]
    assert policy.shaper.reserve("alice").delay == 0.1


def test_so_does_a_reservation(world, policy, heard):
    def stop(event):
        if not isinstance(event, Cancelled):
            raise Stop

    with policy.listen(stop):
        with pytest.raises(Stop):
            world.do(policy.shaper.reserve, "alice")
        with pytest.raises(Stop):
            world.do(policy.shaper.hold, "1s", key="alice")
    assert [type(event) for event in heard] == [Reserved, Cancelled, Held]


def test_an_interruption_of_a_refusal_is_no_end_of_a_turn(world, policy, heard):
    def stop(event):
        raise Stop

    policy.shaper.reserve("alice")
    del heard[:]
    with policy.listen(stop), pytest.raises(Stop):
        world.do(policy.shaper.reserve, "alice", max_wait=0)
    assert len(heard) == 1
    assert policy.shaper.reserve("alice").delay == 0.1


def test_only_what_can_be_called_listens(refused, policy):
    async def later(event):
        pass

    class Later:
        async def __call__(self, event):
            pass

    for listener in (None, "print", later, Later()):
        for listening in (policy.listen, policy.shaper.listen, listen):
            refused(lambda: listening(listener), "listener")  # noqa: B023 - called at once


def test_any_function_of_one_event_listens(policy):
    class Quiet:
        def __call__(self, event):
            told.append(event)

        def method(self, event):
            told.append(event)

    told = []
    for listener in (Quiet(), Quiet().method, told.append):
        with policy.listen(listener):
            policy.shaper.reserve()
    assert len(told) == 3


def test_it_is_told_in_the_thread_of_the_caller(policy):
    threads = []
    with policy.listen(lambda _: threads.append(threading.get_ident())):
        thread = threading.Thread(target=policy.shaper.schedule)
        thread.start()
        thread.join()
    assert threads == [thread.ident] * 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_is_told_in_the_task_of_the_caller(clock, backend):
    # Through a store that is awaited, whose answers come to whoever asked.
    shaper = Shaper("10/s", store=FaultyStore(MemoryStore(clock)), name="stripe")
    told, tasks = [], []

    async def call(key):
        tasks.append((key, get_current_task().id))
        await shaper.aschedule(key)

    async def main():
        async with anyio.create_task_group() as group:
            for key in "ab":
                group.start_soon(call, key)

    shaper.reserve("a")
    shaper.reserve("b")
    with shaper.listen(lambda event: told.append((event.key, get_current_task().id))):
        anyio.run(main, backend=backend)
    assert set(told) == set(tasks)
    assert len(told) == 4


def test_listeners_that_come_and_go_while_others_are_told(clock):
    """One that stays hears of every call, in order; those that come and go raise nothing."""
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


def test_none_is_lost_where_many_come_at_once_and_none_stays_where_many_go(policy, restless):
    listenings, told = [[] for _ in range(4)], []

    def come(number):
        for _ in range(300):
            listenings[number].append(policy.listen(lambda _: told.append(number)))

    def go(number):
        for listening in listenings[number]:
            listening.close()

    for act, heard in ((come, 4 * 300), (go, 0)):
        threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del told[:]
        policy.shaper.reserve()
        assert len(told) == heard


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


# nobody


def test_while_nobody_listens_no_event_is_made(world, policy, monkeypatch):
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


def test_who_listens_elsewhere_has_none_made_here(policy, clock, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("an event was made")

    monkeypatch.setattr(events.Reserved.__base__, "__init__", fail)
    with Shaper("1/s", clock=clock).listen(print):
        for way in WAYS[:2]:
            policy.shaper.hold("1s", key=way)
        policy.shaper.reserve("alice")
        policy.shaper.schedule("alice")
        assert not policy.shaper.reserve("alice", max_wait=0)


def test_gates_tell_nothing(clock, heard):
    gate = Gate(GCRA("10/s", burst=1), clock=clock)
    gate.check()
    gate.check()
    assert heard == []


def test_a_shaped_function_is_heard_by_its_policy(clock):
    call = shaped("10/s", clock=clock, name="stripe")(lambda: None)
    told = []
    with call.policy.listen(told.append):
        call()
    assert told == [Reserved("stripe", "default", 1, 0.0), Departed("stripe", "default", 1, 0.0, 0.0)]
