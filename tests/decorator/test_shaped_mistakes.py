"""Wrong uses of @shaped: a ConfigError at import that shows what to write."""

import asyncio
import functools

import pytest

from shapekit import MemoryStore, Policy, shaped


def function():
    pass


async def coroutine():
    pass


def generator():
    yield


class Client:
    def method(self):
        pass


BARE = [
    function,
    coroutine,
    generator,
    Client,
    Client().method,
    len,
    functools.partial(function),
    classmethod(function),
    staticmethod(function),
    property(function),
    functools.cached_property(function),
    functools.partialmethod(function),
]


@pytest.mark.parametrize("target", BARE, ids=lambda target: type(target).__name__)
def test_the_error_about_bare_shaped_shows_the_fix(refused, target):
    error = refused(lambda: shaped(target), "rate")
    assert "@shaped(rate=10)" in error.fix
    assert '@shaped("100/min")' in error.fix


@pytest.mark.parametrize("arguments", [{}, {"max_wait": 2}, {"key": "{user}"}, {"burst": 5}, {"name": "x"}])
def test_the_error_about_a_missing_limit_shows_the_fix(refused, arguments):
    assert "@shaped(rate=10)" in refused(lambda: shaped(**arguments), "rate").fix


def test_the_error_about_a_policy_in_place_of_the_rate_shows_the_fix(refused):
    assert refused(lambda: shaped(Policy("1/s")), "rate").fix == "write @shaped(policy=…)"


@pytest.mark.parametrize("limit", [{"rate": 1}, {"quota": "1/day"}, {"rate": 0.001}])
def test_any_limit_will_do(limit):
    assert shaped(**limit)(function).policy


@pytest.mark.parametrize("target", [5, "function", None, object(), property(function)])
def test_an_object_that_cannot_be_called_cannot_be_shaped(refused, target):
    refused(lambda: shaped(1)(target), "function")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", "10/fortnight"), ("rate", 0), ("rate", True), ("burst", 0), ("pace", "fast"), ("quota", 5),
        ("gates", 5), ("gates", "10/s"), ("max_wait", "soon"), ("headroom", 1), ("enforce", 1),
        ("refund_on", 5), ("store", 5), ("clock", 5), ("name", 5), ("name", ""), ("cost", 0), ("key", "{"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_before_anything_is_called(refused, field, value):
    refused(lambda: shaped(**{"rate": 1, field: value})(function), field)


def test_a_store_and_a_clock_do_not_go_together(refused):
    store = MemoryStore()
    refused(lambda: shaped(1, store=store, clock=store.clock)(function), "clock")


def test_a_synchronous_function_that_waits_on_a_running_loop_is_warned_of(clock):
    call = shaped("1/s", clock=clock)(function)

    async def on_a_loop():
        call()
        with pytest.warns(RuntimeWarning, match="blocks the event loop"):
            call()

    asyncio.run(on_a_loop())
    assert clock.now() == 1.0
