"""One process under load for a long time: 100,000 keys that come and go, in memory, SQLite and Redis.

`python load.py JSON` works until its standard input ends, in threads and on an event loop: gates, slots that
are taken and given back, holds, waiting calls that time out, stores that are opened and closed. Now and then
it prints, on a line of JSON, what the process holds of the machine.
"""

import asyncio
import ctypes
import gc
import json
import logging
import os
import sys
import threading
import time
from functools import partial
from itertools import count

import anyio

from shapekit import (
    GCRA,
    Gate,
    MemoryStore,
    RateLimitedError,
    ResilientStore,
    Shaper,
    SlidingWindowLog,
    StoreUnavailableError,
    all_of,
)
from shapekit.stores.redis import RedisStore
from shapekit.stores.sqlite import SQLiteStore

KEYS = 100_000
TICK_S = 0.05
LIFE_S = 2
"""How long a key lives after its last call."""
PATIENCE_S = 10.0
"""How long a stopped thread may take to end."""
AT_ONCE = {"memory": 8, "sqlite": 2, "redis": 2, "resilient": 2}
"""Operations a tick, of the threads and of the tasks of a store each: less than a machine can do, so that as
many keys live at any time."""
VISIT_S = 2.0
"""Between two visits of a store that is opened for a few calls."""
PAGE = os.sysconf("SC_PAGE_SIZE")


class Load:
    """What is done to one store."""

    def __init__(self, kind, store, number):
        self.kind = kind
        self.store = store
        self.done = 0
        self.failed = 0
        # The processes reach each key at different times.
        self._next = count(number * KEYS // 2)
        limit = all_of(pace=GCRA(f"1 per {LIFE_S}s", burst=3), window=SlidingWindowLog(3, f"{LIFE_S}s"))
        self._gate = Gate(limit, name="gate", store=store)
        self._shaper = Shaper(f"2 per {LIFE_S}s", max_wait=60, name="shaper", store=store)

    def _key(self):
        return f"customer-{next(self._next) % KEYS}"

    def step(self):
        """One operation of a thread."""
        number = self.done
        self.done += 1
        match number % 6:
            case 0 | 1:
                self._gate.check(self._key())
            case 2:
                self._gate.check_many([self._key() for _ in range(4)])
            case 3:
                self._shaper.reserve(self._key())
            case 4:
                key = self._key()
                reservations = [self._shaper.reserve(key) for _ in range(3)]
                reservations[1].cancel()
                reservations[2].cancel()
            case 5:
                key = self._key()
                self._shaper.hold(LIFE_S / 2, key=key)
                if number % 12 == 5:
                    self._shaper.resume(key=key)

    async def astep(self):
        """One operation of a task."""
        number = self.done
        self.done += 1
        match number % 6:
            case 0:
                await self._gate.acheck(self._key())
            case 1:
                await self._gate.acheck_many([self._key() for _ in range(4)])
            case 2:
                reservation = await self._shaper.areserve(self._key())
                await reservation.acancel()
            case 3:
                key = self._key()
                await self._shaper.ahold(LIFE_S / 2, key=key)
                await self._shaper.aresume(key=key)
            case 4:
                with anyio.move_on_after(TICK_S / 20 * (number % 7)):
                    await self._gate.acheck(self._key())
            case 5:
                # The first leaves, the second times out, with its slot or on its way to one.
                key = self._key()
                await self._shaper.aschedule(key)
                with anyio.move_on_after(TICK_S / 10 * (number % 7)):
                    await self._shaper.aschedule(key)

    def work(self, over):
        """In a thread, until it is over."""
        due = time.monotonic()
        while not over.is_set():
            for _ in range(AT_ONCE[self.kind]):
                try:
                    self.step()
                except StoreUnavailableError:
                    self.failed += 1
                except RateLimitedError:
                    pass
            due = max(due + TICK_S, time.monotonic() - TICK_S)
            over.wait(max(0.0, due - time.monotonic()))

    async def awork(self, over):
        """In a task."""
        due = time.monotonic()
        while not over.is_set():
            for _ in range(AT_ONCE[self.kind]):
                try:
                    await self.astep()
                except StoreUnavailableError:
                    self.failed += 1
                except RateLimitedError:
                    pass
            due = max(due + TICK_S, time.monotonic() - TICK_S)
            await asyncio.sleep(max(0.0, due - time.monotonic()))


class Visits:
    """Stores that are opened, used a little and closed, in a thread and on an event loop."""

    kind = "visits"

    def __init__(self, places):
        self._places = places
        self.done = self.failed = 0

    def work(self, over):
        while not over.is_set():
            for make in self._places.values():
                store = make()
                try:
                    Gate(GCRA("9/s"), name="visitor", store=store).check()
                    self.done += 1
                except StoreUnavailableError:
                    self.failed += 1
                store.close()
            over.wait(VISIT_S)

    async def awork(self, over):
        while not over.is_set():
            for make in self._places.values():
                store = make()
                try:
                    await Gate(GCRA("9/s"), name="visitor", store=store).acheck()
                    self.done += 1
                except StoreUnavailableError:
                    self.failed += 1
                await store.aclose()
            await asyncio.sleep(VISIT_S)


def sample(loop, loads):
    """What this process holds of the machine now, and how much it has done so far."""
    gc.collect()
    # Frozen objects are counted without being looked at: another thread may still be making one of them.
    gc.freeze()
    objects = gc.get_freeze_count()
    gc.unfreeze()
    _give_back_what_is_free()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        "at": time.monotonic(),
        "done": {load.kind: load.done for load in loads},
        "RSS, MB": round(pages * PAGE / 1e6, 3),
        "blocks": sys.getallocatedblocks(),
        "objects": objects,
        "threads": threading.active_count(),
        "tasks": 0 if loop.is_closed() else len(asyncio.all_tasks(loop)),
        "file descriptors": len(os.listdir("/proc/self/fd")),
    }


def _give_back_what_is_free():
    """Returns free memory that the allocator keeps for later; where it cannot, that memory counts as held."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def wait_for_threads(most):
    """Wait until stopped threads have ended, or have had long enough to end."""
    deadline = time.monotonic() + PATIENCE_S
    while threading.active_count() > most and time.monotonic() < deadline:
        time.sleep(0.01)


def print_line(word, value):
    print(json.dumps([word, value]), flush=True)


def main(options):
    # A store that is lost and found again is expected here.
    logging.getLogger("shapekit.store").setLevel(logging.CRITICAL)
    url, path = options["url"], options["path"]
    places = {
        "memory": MemoryStore,
        "sqlite": partial(SQLiteStore, path),
        "redis": partial(RedisStore.from_url, url),
        "resilient": lambda: ResilientStore(RedisStore.from_url(url), on_outage="local", share=0.5),
    }
    loads = [Load(kind, make(), options["number"]) for kind, make in places.items()]
    visits = Visits(places)
    over, stop = threading.Event(), threading.Event()
    loop = asyncio.new_event_loop()

    async def awork():
        # In order: the loads end, then their stores are closed.
        await asyncio.gather(*[load.awork(over) for load in (*loads, visits)])
        for load in loads:
            await load.store.aclose()

    def run_loop():
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(awork())

    crew = [threading.Thread(target=load.work, args=(over,)) for load in (*loads, visits)]
    crew.append(threading.Thread(target=run_loop))
    print_line("before", sample(loop, loads))
    for thread in crew:
        thread.start()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    while not stop.wait(options["every"]):
        print_line("sample", sample(loop, loads))
    over.set()
    for thread in crew:
        thread.join()
    wait_for_threads(2)
    print_line("after", sample(loop, loads))
    print_line("done", {load.kind: [load.done, load.failed] for load in (*loads, visits)})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
