"""@shaped on callables that are no plain functions: partials, objects, built-ins, classes."""

import functools
import inspect
import subprocess
import sys
from unittest.mock import AsyncMock

import pytest

from shapekit import ManualClock, shaped


def add(left, right=1, *, clock):
    return left + right, clock.now()


async def aadd(left, right=1, *, clock):
    return left + right, clock.now()


def test_a_partial(world, clock):
    whole = add if world.is_sync else aadd
    call = shaped("1/s", clock=clock)(functools.partial(whole, 1, clock=clock))
    assert world.call(call, 2) == (3, 0.0)
    assert world.call(call) == (2, 1.0)
    assert inspect.iscoroutinefunction(call) is not world.is_sync


def test_a_partial_is_keyed_by_what_is_left_of_its_signature(clock):
    call = shaped("1/s", key="{right}", clock=clock)(functools.partial(add, 1, clock=clock))
    assert [call(right)[1] for right in (5, 6, 5)] == [0.0, 0.0, 1.0]
    assert call()[1] == 1.0
    assert call.forecast(key="1").first_in == 1.0


class Adder:
    def __init__(self, clock):
        self.clock = clock

    def __call__(self, left, right=1):
        return left + right, self.clock.now()


class AsyncAdder(Adder):
    async def __call__(self, left, right=1):
        return left + right, self.clock.now()


class Counter:
    def __call__(self, up_to):
        yield from range(up_to)


class AsyncCounter:
    async def __call__(self, up_to):
        for number in range(up_to):
            yield number


def test_a_callable_object(clock):
    call = shaped("1/s", key="{left}", clock=clock)(Adder(clock))
    assert [call(1), call(2), call(1, right=3)] == [(2, 0.0), (3, 0.0), (4, 1.0)]
    assert str(inspect.signature(call)) == "(left, right=1)"


class LoopClock(ManualClock):
    """Virtual time in which only tasks may sleep."""

    def sleep(self, seconds, alarm):
        raise AssertionError("a synchronous wait, which blocks the loop")


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:a synchronous wait:RuntimeWarning")
async def test_an_object_with_a_coroutine_function_for_a_call_is_awaited():
    clock = LoopClock(autojump=True)
    call = shaped("1/s", clock=clock)(AsyncAdder(clock))
    assert [await call(number) for number in range(3)] == [(1, 0.0), (2, 1.0), (3, 2.0)]
    assert inspect.iscoroutinefunction(call)


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:a synchronous wait:RuntimeWarning")
async def test_a_partial_of_such_an_object_is_awaited():
    clock = LoopClock(autojump=True)
    call = shaped("1/s", clock=clock)(functools.partial(AsyncAdder(clock), 1))
    assert [await call(number) for number in range(3)] == [(1, 0.0), (2, 1.0), (3, 2.0)]
    assert inspect.iscoroutinefunction(call)


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:a synchronous wait:RuntimeWarning")
async def test_an_object_that_is_marked_as_a_coroutine_function_is_awaited():
    clock = LoopClock(autojump=True)
    call = shaped("1/s", clock=clock)(AsyncMock(side_effect=clock.now))
    assert [await call() for _ in range(3)] == [0.0, 1.0, 2.0]
    assert inspect.iscoroutinefunction(call)


def test_an_object_with_a_generator_for_a_call_is_shaped_when_it_starts(clock):
    call = shaped("1/s", clock=clock)(Counter())
    made = call(3)
    assert call.forecast().first_in == 0.0
    assert list(made) == [0, 1, 2]
    assert call.forecast().first_in == 1.0


@pytest.mark.anyio
async def test_an_object_with_an_async_generator_for_a_call_is_shaped_when_it_starts(clock):
    call = shaped("1/s", clock=clock)(AsyncCounter())
    made = call(3)
    assert call.forecast().first_in == 0.0
    assert [number async for number in made] == [0, 1, 2]
    assert call.forecast().first_in == 1.0


def test_a_bound_method(world, clock):
    class Client:
        @world.define
        def get(self, path):
            return path, clock.now()

    call = shaped("1/s", clock=clock)(Client().get)
    assert [world.call(call, path) for path in "ab"] == [("a", 0.0), ("b", 1.0)]


@pytest.mark.parametrize("builtin", [max, print, dict, len, "".join])
def test_a_built_in_whether_or_not_it_has_a_signature(builtin):
    call = shaped(1, clock=ManualClock(autojump=True))(builtin)
    assert call.__wrapped__ is builtin


def test_a_key_of_hidden_parameters_is_refused(refused):
    refused(lambda: shaped(1, key="{user}")(type("Odd", (), {"__call__": max})()), "key")


def test_a_class_is_shaped_when_it_is_called(clock):
    @shaped("1/s", key="{account}", clock=clock)
    class Session:
        def __init__(self, account):
            self.account = account
            self.opened = clock.now()

    assert [Session(account).opened for account in "aba"] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("make", [lambda: functools.partial(add, 1), lambda: Adder(None), Counter])
def test_the_name_is_the_same_in_every_process(make):
    # On a shared store the workers find one another by it: it must contain no address.
    names = {shaped(1)(made).policy.name for made in (make(), make())}
    assert len(names) == 1
    assert " at 0x" not in names.pop()


SCRIPT = """
import multiprocessing

from shapekit import shaped

@shaped(1)
def fetch(): ...

def say():
    print(fetch.policy.name, flush=True)

if __name__ == "__main__":
    say()
    child = multiprocessing.get_context("spawn").Process(target=say)
    child.start()
    child.join()
"""


@pytest.mark.parametrize("how", [["script.py"], ["-m", "script"], ["-c", "import script; script.say()"]])
def test_a_script_and_the_children_that_it_spawns_have_the_name_of_its_module(how, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    said = subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(said.stdout.split()) == {"script.fetch"}
