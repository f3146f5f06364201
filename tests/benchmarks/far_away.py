"""A Redis that is 25 ms away each way: what prefetch saves."""

from __future__ import annotations

import threading
import time
from itertools import count

from shapekit import Shaper
from shapekit.stores.redis import RedisStore

from ..queue.prefetch.far import FarAway
from ..redis_server import RedisServer
from .progress import say
from .rounds import Figures
from .tables import Column, Effort, Goal, Group, Line, Table

NAME = "far"
RATE = 200
THREADS = 8
WARM_S = 1.5
FULL_S = 5
METHOD = f"""
A forwarder delays each message by 25 ms each way. {THREADS} threads of one process make one call after the
other, at {RATE} calls a second, after a start of {WARM_S} s. Trips are script calls.
"""
OF_THE_LIMIT = "of the limit"
TRIPS = "trips a call"
_names = count()


def one_round(far: FarAway, prefetch: str | None, seconds: float) -> Figures:
    """A crowd, with a store of its own."""
    store = RedisStore.from_url(far.url(), prefix=f"far{next(_names)}")
    shaper = Shaper(f"{RATE}/s", name="far", store=store, prefetch=prefetch)
    try:
        _crowd(shaper, WARM_S)
        before, start = len(far.scripts), time.monotonic()
        left = _crowd(shaper, seconds)
        took = time.monotonic() - start
        return {OF_THE_LIMIT: left / took / RATE, TRIPS: (len(far.scripts) - before) / left}
    finally:
        shaper.close()
        store.close()


def _crowd(shaper: Shaper, seconds: float) -> int:
    left: list[object] = []
    until = time.monotonic() + seconds

    def work() -> None:
        while time.monotonic() < until:
            left.append(shaper.schedule())

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(left)


def measure(effort: Effort) -> Group:
    """With prefetch and without, in turns."""
    server = RedisServer().start()
    far = FarAway(server.port, 0.025)
    lines = {None: Line("shapekit", "no prefetch"), "1s": Line("shapekit", 'prefetch="1s"')}
    try:
        for number in range(effort.rounds):
            for prefetch, line in lines.items():
                say(f"round {number + 1} of {effort.rounds}, {line.name}")
                for column, figure in one_round(far, prefetch, max(1.0, FULL_S * effort.share)).items():
                    line.rounds.setdefault(column, []).append(figure)
    finally:
        far.close()
        server.close()
    prefetching = lines["1s"]
    table = Table(
        f"{THREADS} threads at {RATE}/s, 50 ms from Redis",
        [Column(OF_THE_LIMIT, digits=3), Column(TRIPS, digits=3, compared=True)],
        list(lines.values()),
        ("shapekit", prefetching.name),
    )
    goals = [
        Goal("of the limit, with prefetch", prefetching.median(OF_THE_LIMIT) or 0.0, 0.95, less=False),
        Goal("trips a call, with prefetch", prefetching.median(TRIPS) or 1.0, 1 / 20),
    ]
    return Group(NAME, "Redis far away", METHOD, [table], goals)
