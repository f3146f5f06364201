"""Paths: the calls that programs make all the time, each counted. The gate holds the figures found here."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import repeat
from statistics import median
from time import thread_time_ns
from typing import Any, TypeAlias

import httpx
import requests
import requests.adapters

from shapekit import GCRA, Gate, ManualClock, MemoryStore, Policy, RedisStore, Shaper, shaped
from shapekit.algorithms.base import CHECK
from shapekit.algorithms.queue.wire import RESERVE
from shapekit.integrations.httpx import ShapedTransport
from shapekit.integrations.requests import ShapedAdapter
from shapekit.stores.redis.protocol import script_of

from ..redis_server import RedisServer
from .counting import Work, awaited, work_of
from .subjects import FAR, Floor, gates
from .wire import Wire

Figures: TypeAlias = dict[str, int]
"""The figures of one path, by kind."""

AT_ONCE = f"{FAR}/s burst 1000"
KEYS = 1_000
CALLS = 20
ROUNDS, TIMED = 200, 400


def in_process(tasks: asyncio.Runner) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls that end in this process, and have nothing to wait for."""
    for subject in gates():
        with subject.opened() as names:
            check = names["check"]
            yield f"Gate({subject.name}).check", lambda check=check: check("key")
    clock = ManualClock()
    denying = Gate(GCRA("1/day"), clock=clock)
    denying.check("key")
    clock.advance(1.0)  # a denial sweeps no keys, so that from now on it always finds some due
    yield "Gate(GCRA).check, denied", lambda: denying.check("key")
    shaper, behind = Shaper(AT_ONCE), Shaper("10/s")
    gated = Shaper(AT_ONCE, gates=(GCRA("10/s", burst=FAR),))
    several = Shaper(f"{FAR}/s burst 1000; 1000000/min")
    yield "Shaper.reserve", lambda: shaper.reserve("key")
    yield "Shaper.reserve, behind others", lambda: behind.reserve("key")
    yield "Shaper.reserve, a GCRA beside", lambda: gated.reserve("key")
    yield "Shaper.reserve, two rates", lambda: several.reserve("key")
    yield "Shaper.reserve and cancel", lambda: behind.reserve("key").cancel()
    yield "Shaper.areserve", awaited(tasks, lambda: shaper.areserve("key"))
    yield "Shaper.schedule", lambda: shaper.schedule("key")
    yield "Shaper.aschedule", awaited(tasks, lambda: shaper.aschedule("key"))
    policy = Policy(AT_ONCE, name="gate")

    def admitted() -> None:
        with policy.admit("key"):
            pass

    yield "Policy.admit", admitted

    @shaped(rate=AT_ONCE)
    def plain() -> None:
        pass

    @shaped(rate=AT_ONCE, key="{customer}")
    def keyed(customer: str) -> None:
        pass

    @shaped(rate=AT_ONCE)
    async def coroutine() -> None:
        pass

    yield "@shaped call", plain
    yield "@shaped call, a key of its arguments", lambda: keyed("alice")
    yield "@shaped call, awaited", awaited(tasks, coroutine)
    yield from http(tasks)


class Answering(requests.adapters.BaseAdapter):
    """Answers from memory."""

    def send(self, request: requests.PreparedRequest, **_: Any) -> requests.Response:
        response = requests.Response()
        response.status_code, response.request = 200, request
        return response

    def close(self) -> None:
        """There is nothing to close."""


def http(tasks: asyncio.Runner) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Requests that are answered from memory."""
    silent = httpx.MockTransport(lambda _: httpx.Response(200))
    transport = ShapedTransport(silent, rate=AT_ONCE)
    request = httpx.Request("GET", "https://api.example.com/v1/things")
    yield "httpx, a request", lambda: transport.handle_request(request)
    yield "httpx, a request, awaited", awaited(tasks, lambda: transport.handle_async_request(request))
    adapter = ShapedAdapter(Answering(), rate=AT_ONCE)
    prepared = requests.Request("GET", "https://api.example.com/v1/things").prepare()
    yield "requests, a request", lambda: adapter.send(prepared)


def on_redis() -> Iterator[tuple[str, Figures]]:
    """A decision on Redis: what it executes here, what goes over the wire, and what the server does."""
    with RedisServer() as server, Wire(server.port) as wire, server.client() as client:
        store = RedisStore.from_url(f"redis://127.0.0.1:{wire.port}/0")
        gate = Gate(GCRA("1000000/s"), store=store, name="gate")
        shaper = Shaper("1000000/s", burst=1_000, store=store, name="shaper")
        month = Policy("1000000/s", quota="1000000/month", store=store, name="policy").shaper
        for name, call in {
            "Redis, Gate(GCRA).check": lambda: gate.check("key"),
            "Redis, Shaper.reserve": lambda: shaper.reserve("key"),
            "Redis, Shaper.reserve, a quota beside": lambda: month.reserve("key"),
        }.items():
            yield name, {**_work(work_of(call)), **_sent(call, wire, client)}
        store.close()

        async def awaited() -> list[tuple[str, Figures]]:
            store = RedisStore.from_url(f"redis://127.0.0.1:{wire.port}/0")
            gate = Gate(GCRA("1000000/s"), store=store, name="gate")
            shaper = Shaper("1000000/s", store=store, name="shaper")
            found = []
            for name, call in {
                "Redis, Gate(GCRA).acheck, 64 at once": gate.acheck,
                "Redis, Shaper.areserve, 64 at once": shaper.areserve,
            }.items():
                for _ in range(3):
                    await asyncio.gather(*(call("key") for _ in range(64)))
                traffic = []
                for _ in range(CALLS):
                    before = wire.traffic
                    await asyncio.gather(*(call("key") for _ in range(64)))
                    traffic.append(wire.traffic.since(before))
                trips, sent, received = [int(median(each)) for each in zip(*traffic, strict=True)]
                found.append((name, {"trips": trips, "bytes sent": sent, "bytes received": received}))
            await store.aclose()
            return found

        yield from asyncio.run(awaited())


def _work(work: Work) -> Figures:
    return work._asdict()


def _sent(call: Callable[[], Any], wire: Wire, client: Any) -> Figures:
    """The traffic of one call: its trips, the bytes each way, and the commands that the server ran."""
    client.config_resetstat()
    before = wire.traffic
    for _ in range(CALLS):
        call()
    traffic = wire.traffic.since(before)
    stats = client.info("commandstats")
    ours = sum(stat["calls"] for name, stat in stats.items() if not name.startswith(_ASKING))
    return {
        "trips": traffic.trips // CALLS,
        "bytes sent": traffic.sent // CALLS,
        "bytes received": traffic.received // CALLS,
        "commands": ours // CALLS,
    }


_ASKING = ("cmdstat_info", "cmdstat_config", "cmdstat_hello", "cmdstat_client")


def on_a_loop() -> Iterator[tuple[str, Figures]]:
    """Functions that fall asleep."""
    shaper, loop = Shaper("1/s"), asyncio.new_event_loop()
    shaper.reserve("key")

    async def asleep_and_cancelled() -> None:
        task = loop.create_task(shaper.aschedule("key"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    work = work_of(lambda: loop.run_until_complete(asleep_and_cancelled()))
    yield "Shaper.aschedule, asleep and cancelled", _work(work)
    loop.close()


def scripts() -> Iterator[tuple[str, Figures]]:
    """The scripts that Redis runs from their first line at every call."""
    gate, queue = GCRA("10/s"), Shaper("10/s").core.queue
    for name, program, operation in (
        ("Gate(GCRA).check", gate, CHECK),
        ("Shaper.reserve", queue, RESERVE),
    ):
        yield f"script of {name}", {"bytes": len(script_of(program.twin((0,)), [operation]).text.encode())}


def memory() -> Iterator[tuple[str, Figures]]:
    """The memory of this process that a key occupies, without its text."""
    texts = [f"key{number}" for number in range(KEYS)]
    for name, call in {
        "Gate(GCRA)": Gate(GCRA("1000/h"), store=MemoryStore()).check,
        "Shaper": Shaper("1000/h", store=MemoryStore()).reserve,
    }.items():
        call("first")
        # Tuples that the interpreter keeps for reuse are not seen when they are used again.
        hoard = [(None,) * size for size in range(1, 21) for _ in range(2_000)]
        tracemalloc.start()
        for text in [*texts, *texts]:
            call(text)
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        hoard.clear()
        yield f"{name}, a key in memory", {"bytes": kept // KEYS}


def timed() -> Iterator[tuple[str, Figures]]:
    """Work that counts do not see, such as C code: the time of a call, in hundredths of the floor's.

    Processor time, in rounds so short that the processor has one speed in most of them; the median of the
    rounds' ratios. That is the same beside twenty other programs, and on a processor that slows down.
    """
    gate, shaper = Gate(GCRA("10/s", burst=FAR)), Shaper(AT_ONCE)

    @shaped(rate=AT_ONCE)
    def plain(_: str) -> None:
        pass

    def took(call: Callable[[str], Any]) -> int:
        start = thread_time_ns()
        for _ in repeat(None, TIMED):
            call("key")
        return thread_time_ns() - start

    floor = Floor().check
    calls: dict[str, Callable[[str], Any]] = {
        "Gate(GCRA).check": gate.check,
        "Shaper.reserve": shaper.reserve,
        "Shaper.schedule": shaper.schedule,
        "@shaped call": plain,
    }
    ratios: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        least = took(floor)
        for name, call in calls.items():
            ratios[name].append(took(call) / least)
    for name, found in ratios.items():
        yield f"{name}, time", {"% of the floor": round(100 * median(found))}


def measured() -> dict[str, Figures]:
    """Every path."""
    with asyncio.Runner() as tasks:
        found = {name: _work(work_of(call)) for name, call in in_process(tasks)}
    found |= dict(on_redis())
    found |= dict(scripts())
    found |= dict(memory())
    found |= dict(timed())
    found |= dict(on_a_loop())
    return found
