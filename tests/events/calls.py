"""Every way of making a call of a policy: from a thread without an event loop, and from tasks."""

import anyio

from shapekit import shaped
from shapekit._adapters.http import Target
from shapekit._runtime.drivers import TASKS, run
from shapekit.events import Reserved

TARGET = Target("GET", "https", "api.x", None, "/search")
SCOPE = "search"


class Threads:
    """Calls from this thread."""

    name = "sync"

    def run(self, policy, way, key, **options):
        """Make one call; returns when it has left."""
        getattr(self, way)(policy, key, **options)

    def schedule(self, policy, key, **options):
        policy.shaper.schedule(key, **options)

    def admit(self, policy, key, **options):
        with policy.admit(key, **options):
            pass

    def scoped(self, policy, key, **options):
        with targeted(policy, key, **options):
            pass

    def prepared(self, policy, key, cost=1):
        """The path of calls without options of their own."""
        shaped(policy=policy, key=key, cost=cost)(lambda: None)()

    def templated(self, policy, key, cost=1):
        shaped(policy=policy, key="{owner}", cost=cost)(lambda owner: None)(key)

    def do(self, function, *args, **options):
        """A method with an awaitable twin, by the name of the plain one."""
        return function(*args, **options)

    def flow(self, flow, *args):
        """A flow that is written once for threads and tasks."""
        return run(flow, *args)


class Tasks:
    """Calls from a task on an event loop of their own."""

    def __init__(self, name):
        self.name = name

    def run(self, policy, way, key, **options):
        """Make one call; returns when it has left."""

        async def main():
            await self.arun(policy, way, key, **options)

        anyio.run(main, backend=self.name)

    async def arun(self, policy, way, key, **options):
        """`run`, on the running loop."""
        await getattr(self, way)(policy, key, **options)

    async def schedule(self, policy, key, **options):
        await policy.shaper.aschedule(key, **options)

    async def admit(self, policy, key, **options):
        async with policy.aadmit(key, **options):
            pass

    async def scoped(self, policy, key, **options):
        async with targeted(policy, key, **options):
            pass

    async def prepared(self, policy, key, cost=1):
        @shaped(policy=policy, key=key, cost=cost)
        async def call():
            pass

        await call()

    async def templated(self, policy, key, cost=1):
        @shaped(policy=policy, key="{owner}", cost=cost)
        async def call(owner):
            pass

        await call(key)

    def do(self, function, *args, **options):
        """A method with an awaitable twin, by the name of the plain one."""
        twin = getattr(function.__self__, f"a{function.__name__}")

        async def main():
            return await twin(*args, **options)

        return anyio.run(main, backend=self.name)

    def flow(self, flow, *args):
        """A flow that is written once for threads and tasks."""
        return anyio.run(flow, TASKS, *args, backend=self.name)


def targeted(policy, key, **options):
    """An admission to a scope of the server, where scopes are known."""
    policy.scoped.scopes.learn(key, TARGET, SCOPE)
    admission = policy.admit(key, **options)
    admission.target = TARGET
    return admission


def once_reserved(policy, act, *args, **options):
    """Inside, this function runs once, as soon as a call of the policy has its slot."""

    def on_event(event):
        if isinstance(event, Reserved):
            listening.close()
            act(*args, **options)

    listening = policy.listen(on_event)
    return listening


WORLDS = [Threads(), Tasks("asyncio"), Tasks("trio")]
WAYS = ["schedule", "admit", "scoped", "prepared", "templated"]
PATIENT = ["schedule", "admit", "scoped"]
"""The ways that take a max_wait or a timeout of their own."""
