"""A stage: tasks that wait for a shaper in virtual time, and notes of when each left."""

import anyio
from anyio.lowlevel import checkpoint

from shapekit import ShapekitError
from shapekit._runtime.drivers import AsyncAlarm


class Stage:
    """Runs its acts side by side on one event loop; `left` holds `(name, seconds since the start)`.

    Acts of one instant begin in the order in which they were written down, on trio too.
    """

    def __init__(self, backend, clock):
        self._backend = backend
        self._clock = clock
        self._start_us = clock.now_us()
        self._acts = []
        self.left = []
        self.errors = {}
        self.reservations = {}

    @property
    def now(self):
        return (self._clock.now_us() - self._start_us) / 1e6

    @property
    def names(self):
        return [name for name, _ in self.left]

    @property
    def times(self):
        return [time for _, time in self.left]

    async def until(self, seconds):
        due_us = self._start_us + round(seconds * 1e6)
        await self._clock.asleep(max(0, due_us - self._clock.now_us()) / 1e6, AsyncAlarm())

    def at(self, seconds, act):
        """Later, call `act`: a function, or a coroutine function."""

        async def later():
            result = act()
            if result is not None and hasattr(result, "__await__"):
                await result

        self._acts.append((seconds, later))

    def wait_for(self, shaper, name, *, at=0.0, **options):
        """A caller that comes at an instant and schedules."""

        async def waiter():
            try:
                self.reservations[name] = await shaper.aschedule(**options)
            except (ShapekitError, TimeoutError) as error:
                self.errors[name] = (self.now, error)
            else:
                self.left.append((name, self.now))

        self.at(at, waiter)

    def run(self):
        async def main():
            async with anyio.create_task_group() as tasks:
                for seconds, act in sorted(self._acts, key=lambda act: act[0]):
                    await self.until(seconds)
                    tasks.start_soon(act)
                    # Trio starts what is new in any order, but before it goes round a second time.
                    await checkpoint()
                    await checkpoint()

        anyio.run(main, backend=self._backend)
        return self
