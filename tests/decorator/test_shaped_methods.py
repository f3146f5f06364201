"""@shaped on methods: one limit for the class, or one for each instance; class and static methods."""

import contextlib
import gc
import inspect
import sys
import threading
import tracemalloc
import weakref

import pytest

from shapekit import ManualClock, MemoryStore, Policy, QueueFullError, shaped


def client(world, clock, **arguments):
    """A class with a shaped method that returns when it was called."""

    class Client:
        def __init__(self, account="a"):
            self.account = account

        @shaped("1/s", clock=clock, **arguments)
        @world.define
        def get(self, path="/"):
            return self.account, path, clock.now()

    return Client


def test_all_instances_share_the_limit_of_a_method(world, clock):
    make = client(world, clock)
    one, other = make("a"), make("b")
    assert world.call(one.get, "/x") == ("a", "/x", 0.0)
    assert world.call(other.get, path="/y") == ("b", "/y", 1.0)
    assert world.call(make.get, one) == ("a", "/", 2.0)


def test_a_method_keeps_its_metadata(world, clock):
    make = client(world, clock)
    assert str(inspect.signature(make.get)) == "(self, path='/')"
    assert str(inspect.signature(make().get)) == "(path='/')"
    assert make().get.policy is make.get.policy
    assert make().get.forecast(2) == (0.0, 1.0)
    assert make.get.policy.name.endswith("client.<locals>.Client.get")


def test_each_instance_may_have_its_own_limit(world, clock):
    make = client(world, clock, per="instance")
    one, other = make("a"), make("b")
    left = [world.call(instance.get)[2] for instance in (one, other, one, other)]
    assert left == [0.0, 0.0, 1.0, 1.0]


def test_a_key_of_the_instance(world, clock):
    make = client(world, clock, key="{self.account}")
    left = [world.call(make(account).get)[2] for account in ("a", "b", "a")]
    assert left == [0.0, 0.0, 1.0]


def test_instances_that_are_equal_or_cannot_be_hashed_are_still_two(clock):
    class Equal:
        def __eq__(self, other):
            return True

        __hash__ = None

        @shaped("1/s", per="instance", clock=clock)
        def get(self):
            return clock.now()

    one, other = Equal(), Equal()
    assert [one.get(), other.get(), one.get()] == [0.0, 0.0, 1.0]


def test_a_new_instance_never_inherits_the_slots_of_one_that_is_gone(clock):
    class Client:
        @shaped("1/h", per="instance", clock=clock)
        def get(self):
            return clock.now()

    # CPython gives a new object the address, and so the id, of a deleted one.
    assert [Client().get() for _ in range(50)] == [0.0] * 50


def test_an_instance_is_not_kept_alive_by_having_a_limit(world, clock):
    make = client(world, clock, per="instance")
    one = make()
    watched = weakref.ref(one)
    world.call(one.get)
    del one
    gc.collect()
    assert watched() is None


def test_the_memory_of_an_instance_goes_with_it(clock):
    class Client:
        @shaped("10/s", per="instance", clock=clock)
        def get(self):
            pass

    sweeper = Client()
    # All are made first, so that none gets the address of another.
    crowds = [[Client() for _ in range(500)] for _ in range(6)]
    held = []
    tracemalloc.start()
    try:
        while crowds:
            for instance in crowds.pop():
                instance.get()
            del instance
            for _ in range(500):
                # Each call sweeps a few idle keys out of the store.
                clock.advance(1)
                sweeper.get()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # An entry in a dictionary alone takes 100 bytes, and there were 500 more each time.
    assert held[-1] - held[1] < 500 * 100


@pytest.mark.parametrize("caller", ["another thread", "a finalizer"])
def test_an_instance_has_one_limit_wherever_another_call_comes_in(caller):
    """The first call is interrupted at each line of the decorator in turn, and another thread calls, too, or
    code that runs in the middle of the first, as finalizers and signal handlers do.
    """
    left = []

    class Client:
        @shaped("1/h", per="instance", max_wait=0, clock=ManualClock())
        def get(self):
            left.append(self)

        def ask(self):
            with contextlib.suppress(QueueFullError):
                self.get()

    decorator = inspect.getfile(shaped)

    def interrupted_at(line):
        """Whether there is such a line; if so, exactly one of the two calls must have left."""
        one = Client()
        other = threading.Thread(target=one.ask)
        passed = 0

        def trace(frame, event, _):
            nonlocal passed
            if frame.f_code.co_filename == decorator and event == "line":
                passed += 1
                if passed == line:
                    sys.settrace(None)
                    if caller == "a finalizer":
                        one.ask()
                    else:
                        other.start()
                        other.join(10)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            one.ask()
        finally:
            sys.settrace(before)
        assert left == [one], f"interrupted at line {line}"
        left.clear()
        return passed >= line

    line = 1
    while interrupted_at(line):
        line += 1
    assert line > 5


def test_the_instance_may_be_passed_by_its_name(clock):
    class Client:
        @shaped("1/s", per="instance", clock=clock)
        def send(self, what):
            return what, clock.now()

    one, other = Client(), Client()
    results = [Client.send(self=one, what=1), one.send(2), Client.send(what=3, self=other)]
    assert results == [(1, 0.0), (2, 1.0), (3, 1.0)]


def test_an_instance_without_weak_references_is_a_config_error(refused):
    class Slotted:
        __slots__ = ()

        @shaped(1, per="instance")
        def get(self):
            pytest.fail("called")

    refused(Slotted().get, "per")


class SharedStore(MemoryStore):
    """A store as seen by other processes."""

    shared = True


def test_per_instance_means_nothing_on_a_shared_store(refused):
    error = refused(
        lambda: shaped(1, per="instance", store=SharedStore(), name="api")(lambda self: None), "per"
    )
    assert 'key="{self.account}"' in error.fix


@pytest.mark.parametrize("per", ["object", None, 1, "", True])
def test_a_wrong_per_is_refused(refused, per):
    assert "class, instance" in refused(lambda: shaped(1, per=per), "per").fix


def test_per_instance_beside_a_key_is_refused(refused):
    refused(lambda: shaped(1, per="instance", key="{self.account}"), "per")
    keyed = Policy(1, key="{self.account}")
    refused(lambda: shaped(policy=keyed, per="instance")(lambda self: None), "per")


def test_per_instance_of_a_function_without_an_instance_is_refused(refused):
    refused(lambda: shaped(1, per="instance")(lambda: None), "per")


def test_forecast_of_a_method_with_limits_per_instance_is_refused(refused, clock):
    class Client:
        @shaped("1/s", per="instance", clock=clock)
        def get(self):
            return None

    one = Client()
    one.get()
    refused(one.get.forecast, "key")


@pytest.mark.parametrize("outer", ["shaped", "method"])
@pytest.mark.parametrize("method", [classmethod, staticmethod])
def test_class_and_static_methods_in_either_order(world, clock, method, outer):
    def body(*args):
        return args, clock.now()

    limit = shaped("1/s", clock=clock)
    function = world.define(body)

    class Client:
        get = limit(method(function)) if outer == "shaped" else method(limit(function))

    class Child(Client):
        pass

    bound = (Client, Child, Child) if method is classmethod else ()
    assert world.call(Client.get, 1) == ((*bound[:1], 1), 0.0)
    assert world.call(Child.get, 2) == ((*bound[1:2], 2), 1.0)
    assert world.call(Child().get, 3) == ((*bound[2:], 3), 2.0)
    assert isinstance(inspect.getattr_static(Client, "get"), method)
    assert Client.get.policy is Child.get.policy
    assert Client.get.forecast().first_in == 1.0


def test_a_classmethod_may_be_keyed_by_its_class(clock):
    class Client:
        @classmethod
        @shaped("1/s", key="{cls.__name__}", clock=clock)
        def get(cls):
            return clock.now()

    class Child(Client):
        pass

    assert [Client.get(), Child.get(), Client.get()] == [0.0, 0.0, 1.0]
