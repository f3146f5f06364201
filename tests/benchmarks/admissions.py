"""The cost of a whole call: admitted, made, and given back, with permits and with tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shapekit import LLMBudget, Policy, RedisStore, Store

from ..redis_server import RedisServer
from .measure import NS, measured
from .progress import say
from .subjects import Subject
from .tables import Column, Effort, Goal, Group, Line, Table

NAME = "admissions"
FAR = 1_000_000_000
PERMITS = 100
METHOD = f"""
`with policy.admit():` around nothing, at a slot that has come: with a rate, with one of {PERMITS} permits
(`concurrency=`), with both; and `LLMBudget.admit` of 500 tokens, settled with 300. The floor is a semaphore
of threads in one process, without crash recovery.
"""
TAKEN = "a call"
TRIPS = "trips a call"
RATE, IN_FLIGHT, BOTH, TOKENS = "a rate", "permits", "a rate and permits", "LLMBudget, settled"


def calls(store: Store | None = None) -> dict[str, Callable[[], Any]]:
    """One call of each kind, to be made again and again."""
    rate = f"{FAR}/s burst {FAR}"
    policies = {
        RATE: Policy(rate, name="rate", store=store),
        IN_FLIGHT: Policy(concurrency=PERMITS, name="permits", store=store),
        BOTH: Policy(rate, concurrency=PERMITS, name="both", store=store),
    }
    budget = LLMBudget(
        requests=f"{FAR}/s burst {FAR}", tokens=f"{FAR}/s", estimate=500, name="llm", store=store
    )

    def admitted(policy: Policy) -> Callable[[], Any]:
        def one() -> bool:
            with policy.admit("key"):
                return True

        return one

    def settled() -> bool:
        with budget.admit() as call:
            return call.settle(300)

    return {name: admitted(policy) for name, policy in policies.items()} | {TOKENS: settled}


def subjects() -> list[Subject]:
    """The floor, and ours in the memory of one process."""

    @contextmanager
    def semaphore() -> Iterator[dict[str, Any]]:
        permits = threading.BoundedSemaphore(PERMITS)

        def one() -> bool:
            with permits:
                return True

        yield {"one": one}

    def ours(name: str) -> Subject:
        @contextmanager
        def opened() -> Iterator[dict[str, Any]]:
            yield {"one": calls()[name]}

        return Subject("shapekit", name, "one()", opened)

    return [Subject("floor", "BoundedSemaphore", "one()", semaphore), *map(ours, calls())]


def shared(effort: Effort) -> list[Line]:
    """µs and trips a call, on a Redis of our own."""
    server = RedisServer().start()
    store = RedisStore.from_url(server.url)
    try:
        with server.client() as client:

            def scripts() -> int:
                stats = client.info("commandstats")
                return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))

            made = calls(store)
            for call in made.values():
                call()
            lines = {name: Line("shapekit", name) for name in made}
            for number in range(effort.rounds):
                for name, call in made.items():
                    say(f"round {number + 1} of {effort.rounds}, {name}")
                    before, start, count = scripts(), time.perf_counter(), effort.of(1_000)
                    for _ in range(count):
                        call()
                    taken = (time.perf_counter() - start) / count * 1e6
                    lines[name].rounds.setdefault(TAKEN, []).append(taken)
                    lines[name].rounds.setdefault(TRIPS, []).append((scripts() - before) / count)
    finally:
        store.close()
        server.close()
    return list(lines.values())


def measure(effort: Effort) -> Group:
    """In one process, and on Redis."""
    alone = Table(
        "A whole call in one process",
        [Column(NS, "ns", 0, compared=True)],
        measured(subjects(), 2 * effort.rounds, effort.of(20_000)),
        ("shapekit", RATE),
    )
    together = Table(
        "A whole call on Redis",
        [Column(TAKEN, "µs", 1, compared=True), Column(TRIPS, digits=2)],
        shared(effort),
        ("shapekit", RATE),
    )
    goals = []
    for table, column in ((alone, NS), (together, TAKEN)):
        for name in (IN_FLIGHT, BOTH, TOKENS):
            ratio = table.ratio(table.line("shapekit", name), column)
            goals.append(Goal(f"{table.title[13:]}: {name} / {RATE}", ratio or 0.0))
    return Group(NAME, "Permits and tokens", METHOD, [alone, together], goals)
