"""The cost of a decision that all workers share: on Redis, and in one SQLite file.

Wall time, because most of it passes in another process: each round measures every subject.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import redis.asyncio

from shapekit import GCRA, FixedWindow, Gate, RedisStore, Shaper, SlidingWindow, SlidingWindowLog, TokenBucket
from shapekit.algorithms.base import CHECK
from shapekit.algorithms.queue.wire import RESERVE

from ..redis_server import RedisServer
from .library import offering, words
from .progress import say
from .tables import Column, Effort, Goal, Group, Line, Table

NAME = "redis"
METHOD = """
One admitted call on one key in Redis: by one caller (sync), by one task on asyncio, by 64 tasks at once.
Goals compare the best rounds, which a busy machine disturbs least. "Bare" is the same script sent by redis-py
alone; the smallest script is the least GCRA on the server's clock. Last, a SQLite file.
"""
FAR = 10**6
CALLERS = 64
TAKEN = "a call"
SQLITE = "decisions a second"
WORKER = """
import sys, time
from shapekit import GCRA, Gate, SQLiteStore
gate = Gate(GCRA("{far}/s"), store=SQLiteStore({path!r}), name="bench")
gate.check("warm")
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + {seconds}
count = 0
while time.monotonic() < end:
    gate.check("key")
    count += 1
print(count, flush=True)
"""
SMALLEST = """
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local tat = tonumber(redis.call("GET", KEYS[1]) or now)
if tat < now then tat = now end
local after = tat + ARGV[1] * ARGV[3]
if after - now > tonumber(ARGV[2]) then return {0, after - now - ARGV[2]} end
redis.call("SET", KEYS[1], string.format("%.0f", after), "PX", math.ceil((after - now) / 1000))
return {1, 0}
"""
"""The smallest GCRA that can be written by the server's clock."""

Call: TypeAlias = Callable[[], Any]
Subjects: TypeAlias = dict[tuple[str, str], Call]
Times: TypeAlias = dict[tuple[str, str], list[float]]


def own_script(
    store: RedisStore, name: str, program: Any, operation: Any, args: tuple[Any, ...]
) -> list[Any]:
    """The words of the very EVALSHA that a call sends, for the client to send bare."""
    remote = store._remote(name, program)
    conversation = remote.converse(remote.keys_of("key"), (operation,), f"[{remote.call(operation, args)}]")
    return list(next(conversation))


class Scripts:
    """The scripts that our calls send, and the smallest that would do."""

    def __init__(self, server: RedisServer, store: RedisStore) -> None:
        self.gate = Gate(GCRA(f"{FAR}/s"), store=store, name="gate")
        self.shaper = Shaper(f"{FAR}/s", store=store, name="shaper")
        self.gate.check("key")
        self.shaper.reserve("key")
        self.check = own_script(store, "gate", self.gate._program, CHECK, (1,))
        self.reserve = own_script(store, "shaper", self.shaper.core.queue, RESERVE, ((1, None, 2**40),))
        with server.client() as client:
            self.smallest = ["EVALSHA", client.script_load(SMALLEST), 1, "smallest", 1, FAR, 1]


def sync_rounds(url: str, ours: Subjects, effort: Effort) -> tuple[Times, list[Line]]:
    """µs a call of each subject in each round, one call after the other; and the libraries without one."""
    able, failed = offering("redis_calls")
    calls = effort.of(200)
    with ExitStack() as stack:
        subjects = dict(ours)
        for library, module in able:
            if library.name != "shapekit":
                offered = stack.enter_context(module.redis_calls(url, FAR, 60))
                subjects |= {(library.name, name): partial(call, "key") for name, call in offered.items()}
        times: Times = {}
        for number in range(effort.rounds):
            say(f"sync, round {number + 1} of {effort.rounds}")
            for subject, call in list(subjects.items()):
                try:
                    start = time.perf_counter()
                    for _ in range(calls):
                        call()
                except Exception as error:
                    failed.append(_failure(subject, error))
                    del subjects[subject]
                else:
                    taken = (time.perf_counter() - start) / calls * 1e6
                    times.setdefault(subject, []).append(taken)
    return times, failed


async def async_rounds(
    url: str, ours: dict[tuple[str, str], Callable[[], Awaitable[Any]]], effort: Effort
) -> tuple[Times, Times, list[Line]]:
    """`sync_rounds` by one task, and by many at once."""
    able, failed = offering("redis_acalls")
    calls = effort.of(200)
    each = max(1, 4 * calls // CALLERS)
    lone: Times = {}
    crowded: Times = {}

    async def work(call: Callable[[], Awaitable[Any]], times: int) -> None:
        for _ in range(times):
            await call()

    async with AsyncExitStack() as stack:
        subjects = dict(ours)
        for library, module in able:
            if library.name != "shapekit":
                offered = await stack.enter_async_context(module.redis_acalls(url, FAR, 60))
                subjects |= {(library.name, name): partial(call, "key") for name, call in offered.items()}
        for number in range(effort.rounds):
            say(f"async, round {number + 1} of {effort.rounds}")
            for subject, call in list(subjects.items()):
                try:
                    start = time.perf_counter()
                    await work(call, calls)
                    alone = time.perf_counter() - start
                    start = time.perf_counter()
                    await asyncio.gather(*[work(call, each) for _ in range(CALLERS)])
                    together = time.perf_counter() - start
                except Exception as error:
                    failed.append(_failure(subject, error))
                    del subjects[subject]
                else:
                    lone.setdefault(subject, []).append(alone / calls * 1e6)
                    crowded.setdefault(subject, []).append(together / each / CALLERS * 1e6)
    return lone, crowded, failed


def _failure(subject: tuple[str, str], error: Exception) -> Line:
    if subject[0] == "shapekit":
        raise error
    return Line(*subject, failed=words(error))


def measure(effort: Effort) -> Group:
    """µs a call on a Redis of our own, and decisions a second on SQLite."""
    # The best of many short rounds is what the goals go by.
    effort = effort._replace(rounds=4 * effort.rounds)
    with RedisServer() as server:
        store = RedisStore.from_url(server.url)
        bare = server.client()
        scripts = Scripts(server, store)
        others = {
            f"Gate({strategy.kind}).check": Gate(strategy, store=store, name=strategy.kind)
            for strategy in (
                FixedWindow(f"{FAR}/min"),
                SlidingWindow(f"{FAR}/min", buckets=1),
                SlidingWindowLog("10000/s"),
                TokenBucket(f"{FAR}/s"),
            )
        }
        sync, unable = sync_rounds(
            server.url,
            {
                ("shapekit", "Gate(GCRA).check"): partial(scripts.gate.check, "key"),
                ("shapekit", "Shaper.reserve"): partial(scripts.shaper.reserve, "key"),
                **{("shapekit", name): partial(other.check, "key") for name, other in others.items()},
                ("bare", "PING"): bare.ping,
                ("bare", "the smallest script"): partial(bare.execute_command, *scripts.smallest),
                ("bare", "the script of check"): partial(bare.execute_command, *scripts.check),
                ("bare", "the script of reserve"): partial(bare.execute_command, *scripts.reserve),
            },
            effort,
        )

        async def awaited() -> tuple[Times, Times, list[Line]]:
            abare = redis.asyncio.Redis(port=server.port)
            found = await async_rounds(
                server.url,
                {
                    ("shapekit", "Gate(GCRA).acheck"): partial(scripts.gate.acheck, "key"),
                    ("shapekit", "Shaper.areserve"): partial(scripts.shaper.areserve, "key"),
                    ("bare", "the smallest script"): partial(abare.execute_command, *scripts.smallest),
                    ("bare", "the script of check"): partial(abare.execute_command, *scripts.check),
                },
                effort,
            )
            await abare.aclose()
            await store.aclose()
            return found

        lone, crowded, a_unable = asyncio.run(awaited())
    sqlite = sqlite_rounds(effort.rounds // 4, 2.0 * max(effort.share, 0.1))
    check, acheck = ("shapekit", "Gate(GCRA).check"), ("shapekit", "Gate(GCRA).acheck")
    tables = [
        Table("Redis, sync", _columns(), [*_lines(sync), *unable], check, TAKEN),
        Table("Redis, one task on asyncio", _columns(), [*_lines(lone), *a_unable], acheck),
        Table(
            f"Redis, {CALLERS} tasks at once",
            _columns(),
            [*_lines(crowded), *a_unable],
            acheck,
            TAKEN,
        ),
        Table("SQLite", [Column(SQLITE, digits=0)], sqlite),
    ]
    return Group(NAME, "Decisions that are shared", METHOD, tables, goals(sync, lone, crowded, sqlite))


def _columns() -> list[Column]:
    return [Column(TAKEN, "µs", 1, compared=True)]


def _lines(times: Times) -> list[Line]:
    return [Line(library, name, {TAKEN: taken}) for (library, name), taken in times.items()]


def sqlite_rounds(rounds: int, seconds: float) -> list[Line]:
    """Decisions a second, from one process and from four."""
    found: dict[int, list[float]] = {1: [], 4: []}
    for number in range(rounds):
        say(f"SQLite, round {number + 1} of {rounds}")
        for processes, done in found.items():
            done.append(_sqlite(processes, seconds))
    return [
        Line("shapekit", f"SQLiteStore, {processes} process{'' if processes == 1 else 'es'}", {SQLITE: done})
        for processes, done in found.items()
    ]


def _sqlite(processes: int, seconds: float) -> float:
    with tempfile.TemporaryDirectory() as folder:
        code = WORKER.format(far=10**9, path=str(Path(folder) / "bench.db"), seconds=seconds)
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(processes)
        ]
        for worker in workers:
            worker.stdout.readline()  # type: ignore[union-attr]
        for worker in workers:
            worker.stdin.write("go\n")  # type: ignore[union-attr]
            worker.stdin.flush()  # type: ignore[union-attr]
        return sum(int(worker.communicate()[0]) for worker in workers) / seconds


PAIRS = (
    ("Gate(GCRA).check", "throttled-py", "gcra"),
    ("Gate(token_bucket).check", "throttled-py", "token_bucket"),
    ("Gate(fixed_window).check", "throttled-py", "fixed_window"),
    ("Gate(fixed_window).check", "limits", "FixedWindow"),
    ("Gate(sliding_window).check", "limits", "SlidingWindowCounter"),
    ("Gate(sliding_log).check", "limits", "MovingWindow"),
    ("Gate(sliding_log).check", "pyrate-limiter", "RedisBucket"),
)
"""The same decision in all libraries: ours, and the others'."""


def goals(sync: Times, lone: Times, crowded: Times, sqlite: list[Line]) -> list[Goal]:
    """Each goal, and the ratio of the best rounds."""
    best = {subject: min(taken) for subject, taken in sync.items()}
    ours = {name: us for (library, name), us in best.items() if library == "shapekit"}
    small = best["bare", "the smallest script"]
    check, reserve = ours["Gate(GCRA).check"], ours["Shaper.reserve"]
    alone = {subject: min(taken) for subject, taken in lone.items()}
    many = {subject: min(taken) for subject, taken in crowded.items()}
    bare_many = many["bare", "the smallest script"]
    one, four = [max(line.rounds[SQLITE]) for line in sqlite]
    return [
        Goal("Gate.check / its script bare", check / best["bare", "the script of check"], 1.0),
        Goal("Shaper.reserve / its script bare", reserve / best["bare", "the script of reserve"], 1.1),
        Goal("Gate.check / smallest script", check / small, 1.5),
        Goal("Shaper.reserve / smallest script", reserve / small, 1.5),
        *(
            Goal(f"{own} / {library} {name}", ours[own] / best[library, name], 1.0)
            for own, library, name in PAIRS
            if (library, name) in best
        ),
        Goal(
            "async, alone: Gate.acheck / its script bare",
            alone["shapekit", "Gate(GCRA).acheck"] / alone["bare", "the script of check"],
            1.15,
        ),
        *(
            Goal(
                f"{CALLERS} at once: calls of {name} for one smallest script",
                bare_many / many["shapekit", name],
                8.0,
                less=False,
            )
            for name in ("Gate(GCRA).acheck", "Shaper.areserve")
        ),
        Goal("SQLite decisions a second, one process", one, 20_000, less=False),
        Goal("SQLite decisions a second, four processes", four, 15_000, less=False),
    ]
