"""The cost of looking for an override, for Redis and for a caller: `python -m tests.benchmarks.overrides`.

The server's own count of the time that it spends in a script: unchanged, with the look taken out, and with an
override of the key. And the wall time of a call in memory, without and with an override. All in turns, so
that a busy machine disturbs each alike; the median of the rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from shapekit import GCRA, Gate, MemoryStore, RedisStore, Shaper
from shapekit._runtime.drivers import run
from shapekit.algorithms.base import CHECK
from shapekit.algorithms.overrides import Override
from shapekit.algorithms.queue.wire import RESERVE
from shapekit.stores.base import changed
from shapekit.stores.redis.protocol import script_of

from ..redis_server import RedisServer
from .shared_decisions import own_script

ROUNDS, CALLS = 40, 2_000
RATE = "1000000/s"
OVERRIDE = Override(rate="999999/s")
LOOK = "answer_overrides(head[4]) or run_mode()"


def server_us(client: Any, words: list[Any]) -> float:
    """Microseconds of the server's for one such call."""
    client.config_resetstat()
    pipe = client.pipeline(transaction=False)
    for _ in range(CALLS):
        pipe.execute_command(*words)
    pipe.execute()
    figures = client.info("commandstats")["cmdstat_evalsha"]
    return float(figures["usec"]) / CALLS


def wall_us(call: Callable[[], Any]) -> float:
    """Microseconds of the wall for one such call."""
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS * 1e6


def put(store: Any, name: str) -> None:
    """Set another rate of the name, as an operator does."""
    run(changed, store, name, lambda _: (OVERRIDE,))


def on_redis(server: RedisServer) -> dict[str, Callable[[], float]]:
    """The subjects to measure, by name."""
    store, client = RedisStore.from_url(server.url), server.client()
    found: dict[str, Callable[[], float]] = {}
    for kind, is_gate, operation, args in (
        ("check", True, CHECK, (1,)),
        ("reserve", False, RESERVE, ((1, None, 2**40),)),
    ):
        sent = {}
        for what in ("as it is", "with an override"):
            name = f"{kind} {what}"
            if what == "with an override":
                put(store, name)
            made: Any = (
                Gate(GCRA(RATE), store=store, name=name) if is_gate else Shaper(RATE, store=store, name=name)
            )
            # The first call loads the script, and learns of the override.
            for _ in range(2):
                made.check("key") if is_gate else made.reserve("key")
            program = made._program if is_gate else made.core.queue
            if what == "with an override":
                program = store.settings(name).program(program, "key")
            sent[what] = own_script(store, name, program, operation, args)
        text = script_of(store._remote(name, program)._spec, [operation]).text
        assert LOOK in text
        sent["without the look"] = sent["as it is"]
        for what, words in sent.items():
            own = text.replace(LOOK, "run_mode()") if what == "without the look" else text
            named = ["EVALSHA", client.script_load(own), *words[2:]]
            found[f"Redis, {kind}, {what}"] = partial(server_us, client, named)
    return found


def in_memory() -> dict[str, Callable[[], float]]:
    """Likewise, for a caller in this process."""
    found: dict[str, Callable[[], float]] = {}
    for what, is_set in (("as it is", False), ("with an override", True)):
        store = MemoryStore()
        gate, shaper = Gate(GCRA(RATE), store=store, name="check"), Shaper(RATE, store=store, name="reserve")
        if is_set:
            put(store, "check")
            put(store, "reserve")
        found[f"memory, check, {what}"] = partial(wall_us, partial(gate.check, "key"))
        found[f"memory, reserve, {what}"] = partial(wall_us, partial(shaper.reserve, "key"))
    return found


if __name__ == "__main__":
    with RedisServer() as server:
        subjects = on_redis(server) | in_memory()
        rounds: dict[str, list[float]] = {name: [] for name in subjects}
        for _ in range(ROUNDS):
            for name, measure in subjects.items():
                rounds[name].append(measure())
    for name, figures in sorted(rounds.items()):
        print(f"{name}: {statistics.median(figures):.2f} µs, best {min(figures):.2f} µs")
