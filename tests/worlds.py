"""Ways of calling, for one test of all of them."""

import functools

import anyio


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
