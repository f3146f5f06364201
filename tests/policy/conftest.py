"""Helpers of the policy tests: virtual time that moves by itself, and three worlds to call from."""

import functools

import anyio
import pytest

from shapekit import ConfigError, ManualClock, Policy


class World:
    """One way of calling: from a thread without an event loop, or from a task on one."""

    def __init__(self, name):
        self.name = name
        self.is_sync = name == "sync"

    def enter(self, admission, body=lambda admission: None):
        """Enters the admission and runs the plain function `body` in it; returns what that returns."""
        if self.is_sync:
            with admission as entered:
                return body(entered)

        async def run():
            async with admission as entered:
                return body(entered)

        return anyio.run(run, backend=self.name)

    def settle(self, admission, actual):
        if self.is_sync:
            return admission.settle(actual)
        return anyio.run(admission.asettle, actual, backend=self.name)

    def define(self, function):
        """The function, or a coroutine function that does the same."""
        if self.is_sync:
            return function

        @functools.wraps(function)
        async def awaited(*args, **kwargs):
            return function(*args, **kwargs)

        return awaited

    def call(self, function, *args, **kwargs):
        if self.is_sync:
            return function(*args, **kwargs)
        return anyio.run(functools.partial(function, *args, **kwargs), backend=self.name)


@pytest.fixture(params=["sync", "asyncio", "trio"])
def world(request):
    return World(request.param)


@pytest.fixture
def clock():
    """Virtual time that jumps whenever everybody sleeps."""
    return ManualClock(autojump=True)


@pytest.fixture
def policy(clock):
    """Makes a policy on the test's clock."""
    return functools.partial(Policy, clock=clock)


@pytest.fixture(scope="session")
def fits():
    """How many calls of cost 1 could still leave in the next `seconds`; consumes them."""

    def count(policy, seconds=0.0, key="default"):
        taken = 0
        while policy.shaper.reserve(key, max_wait=seconds):
            taken += 1
        return taken

    return count


@pytest.fixture(scope="session")
def outcome():
    """What a call returns, and None; or None, and the ConfigError that it raises. Nothing else is caught."""

    def called(call):
        try:
            return call(), None
        except ConfigError as error:
            return None, error

    return called
