"""What a shared decision costs: `python tests/benchmarks/stores.py`.

Starts a Redis of its own. Wall time, because most of it is spent in another process: each round measures
every subject, and the best round counts, which a busy machine spoils least. Ratios first; a goal that is
missed is printed like one that is met.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis_peers import SMALLEST, peers
from run import VERDICTS, machine

from shapekit import (
    GCRA,
    FixedWindow,
    Gate,
    RedisStore,
    Shaper,
    SlidingWindow,
    SlidingWindowLog,
    TokenBucket,
)

sys.path.insert(0, str(Path(__file__).parent.parent))
from redis_server import RedisServer

FAR = 10**6
CALLERS = 64
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


class Best:
    """The best round of each subject, in µs a call."""

    def __init__(self) -> None:
        self.us: dict[str, float] = {}

    def note(self, name: str, seconds: float, calls: int) -> None:
        self.us[name] = min(self.us.get(name, 1e9), seconds / calls * 1e6)


def sync_rounds(subjects: dict[str, Callable[[], Any]], rounds: int, calls: int) -> Best:
    """Each subject in each round, one call after the other."""
    best = Best()
    for _ in range(rounds):
        for name, call in subjects.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            best.note(name, time.perf_counter() - start, calls)
    return best


async def async_rounds(subjects: dict[str, Callable[[], Awaitable[Any]]], rounds: int, calls: int) -> Best:
    """Each subject in each round, by one caller and by many at once."""
    best = Best()

    async def work(call: Callable[[], Awaitable[Any]], times: int) -> None:
        for _ in range(times):
            await call()

    for _ in range(rounds):
        for name, call in subjects.items():
            start = time.perf_counter()
            await work(call, calls)
            best.note(name, time.perf_counter() - start, calls)
            each = max(1, 4 * calls // CALLERS)
            start = time.perf_counter()
            await asyncio.gather(*[work(call, each) for _ in range(CALLERS)])
            best.note(f"{name}, {CALLERS} callers", time.perf_counter() - start, each * CALLERS)
    return best


def own_script(
    store: RedisStore, name: str, program: Any, operation: Any, args: tuple[Any, ...]
) -> list[Any]:
    """The words of the very EVALSHA that a call sends, for the client to send bare."""
    remote = store._remote(name, program)
    conversation = remote.converse(remote.keys_of("key"), (operation,), f"[{remote.call(operation, args)}]")
    return list(next(conversation))


def redis_figures(rounds: int, calls: int) -> dict[str, float]:
    """µs a call on a Redis of our own."""
    server = RedisServer().start()
    try:
        bare = server.client()
        store = RedisStore.from_url(server.url)
        gate = Gate(GCRA(f"{FAR}/s"), store=store, name="gate")
        shaper = Shaper(f"{FAR}/s", store=store, name="shaper")
        others = {
            f"Gate({strategy.kind}).check": Gate(strategy, store=store, name=strategy.kind)
            for strategy in (
                FixedWindow(f"{FAR}/min"),
                SlidingWindow(f"{FAR}/min", buckets=1),
                SlidingWindowLog("10000/s"),
                TokenBucket(f"{FAR}/s"),
            )
        }
        gate.check("key")
        shaper.reserve("key")
        check = own_script(store, "gate", gate.strategy, "check", (1,))
        reserve = own_script(store, "shaper", shaper.queue, "reserve", ((1, None, 2**40),))
        smallest = ["EVALSHA", bare.script_load(SMALLEST), 1, "smallest", 1, FAR, 1]
        found = sync_rounds(
            {
                "PING": bare.ping,
                "smallest GCRA script, bare": lambda: bare.execute_command(*smallest),
                "script of check, bare": lambda: bare.execute_command(*check),
                "Gate.check": lambda: gate.check("key"),
                "script of reserve, bare": lambda: bare.execute_command(*reserve),
                "Shaper.reserve": lambda: shaper.reserve("key"),
                **{name: partial(other.check, "key") for name, other in others.items()},
                **peers(server.url),
            },
            rounds,
            calls,
        ).us

        async def awaited() -> dict[str, float]:
            abare = redis.asyncio.Redis(port=server.port)
            subjects: dict[str, Callable[[], Awaitable[Any]]] = {
                "smallest, bare": lambda: abare.execute_command(*smallest),
                "script of check, bare": lambda: abare.execute_command(*check),
                "Gate.acheck": lambda: gate.acheck("key"),
                "Shaper.areserve": lambda: shaper.areserve("key"),
            }
            best = await async_rounds(subjects, rounds, calls)
            await abare.aclose()
            await store.aclose()
            return {f"async {name}": us for name, us in best.us.items()}

        found |= asyncio.run(awaited())
        long_key = "k" * 20
        store = RedisStore.from_url(server.url)
        Gate(GCRA("10/s"), store=store, name="g").check(long_key)
        Shaper("10/s", store=store, name="s").reserve(long_key)
        for kind in "gs":
            place = f"shapekit:{{{kind}:{long_key}}}"
            found[f"bytes of a {'GCRA' if kind == 'g' else 'shaper'} key"] = float(
                bare.memory_usage(place) or 0
            )
        store.close()
        return found
    finally:
        server.close()


def sqlite_figures(seconds: float) -> dict[str, float]:
    """Decisions a second, from one process and from four."""
    found = {}
    for processes in (1, 4):
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
            counts = [int(worker.communicate()[0]) for worker in workers]
            found[f"SQLite decisions a second, {processes} process(es)"] = sum(counts) / seconds
    return found


def goals(us: dict[str, float]) -> list[tuple[str, float, float, bool]]:
    """What was asked for: the figure, the goal, and whether less is better."""
    small = us["smallest GCRA script, bare"]
    many = us[f"async smallest, bare, {CALLERS} callers"]
    return [
        ("Gate.check / its script bare", us["Gate.check"] / us["script of check, bare"], 1.15, True),
        (
            "Shaper.reserve / its script bare",
            us["Shaper.reserve"] / us["script of reserve, bare"],
            1.15,
            True,
        ),
        ("Gate.check / smallest script", us["Gate.check"] / small, 1.5, True),
        ("Shaper.reserve / smallest script", us["Shaper.reserve"] / small, 1.5, True),
        *(
            (f"{own} / {peer}", us[own] / us[f"peer {peer}"], 1.0, True)
            for own, peer in (
                ("Gate.check", "throttled-py, gcra"),
                ("Gate(token_bucket).check", "throttled-py, token_bucket"),
                ("Gate(fixed_window).check", "throttled-py, fixed_window"),
                ("Gate(fixed_window).check", "limits, FixedWindow"),
                ("Gate(sliding_window).check", "limits, SlidingWindowCounter"),
                ("Gate(sliding_log).check", "limits, MovingWindow"),
                ("Gate(sliding_log).check", "pyrate-limiter"),
            )
        ),
        ("async lone / bare", us["async Gate.acheck"] / us["async script of check, bare"], 1.3, True),
        ("async 64, check", many / us[f"async Gate.acheck, {CALLERS} callers"], 8.0, False),
        ("async 64, reserve", many / us[f"async Shaper.areserve, {CALLERS} callers"], 8.0, False),
        ("bytes of a GCRA key", us["bytes of a GCRA key"], 112, True),
        ("bytes of a shaper key", us["bytes of a shaper key"], 144, True),
        ("SQLite/s, one process", us["SQLite decisions a second, 1 process(es)"], 20_000, False),
        ("SQLite/s, four processes", us["SQLite decisions a second, 4 process(es)"], 15_000, False),
    ]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long SQLite is measured")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = redis_figures(options.rounds, options.calls) | sqlite_figures(options.seconds)
    if options.json:
        print(json.dumps({"machine": machine(), "figures": figures}, indent=2))
        return
    print(machine())
    for name, figure, goal, less in goals(figures):
        met = figure <= goal if less else figure >= goal
        print(f"{name:58} {figure:10.2f}   goal {'<=' if less else '>='} {goal:<8g} {VERDICTS[met]}")
    print()
    for name, figure in figures.items():
        print(f"{name:48} {figure:12.1f}")


if __name__ == "__main__":
    main()
