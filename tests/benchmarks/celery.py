"""A shaped no-op task that never has to wait beside the plain one: `python tests/benchmarks/celery.py`.

One worker and one broker, pairs interleaved, every second pair the other way round. Each run finds its
messages in a queue of its own and is over when the broker has nothing left that was not acknowledged.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

# This file is named like what it measures, which must not be found in its place.
_HERE = str(Path(__file__).parent)
sys.path[:] = [entry for entry in sys.path if str(Path(entry or ".").resolve()) != _HERE]
sys.path.insert(0, str(Path(__file__).parents[2]))

from celery import Celery  # noqa: E402

from shapekit.integrations.celery import ShapedTask  # noqa: E402
from tests.celery.fleet import Fleet  # noqa: E402
from tests.redis_server import RedisServer  # noqa: E402

GOAL = 0.80


def make_app(url: str) -> Celery:
    """Two tasks that do nothing."""
    app = Celery("benchmark", broker=url, set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)

    @app.task(name="plain", shared=False)
    def plain() -> None:
        pass

    shape = {"rate": "1000000/s", "burst": 1_000_000}

    @app.task(name="shaped", base=ShapedTask, shape=shape, shared=False)
    def shaped() -> None:
        pass

    return app


def per_second(app: Celery, broker: RedisServer, name: str, queue: str, calls: int) -> float:
    """How many a worker does."""
    for _ in range(calls):
        app.tasks[name].apply_async(queue=queue)
    with broker.client() as client:
        began = time.perf_counter()
        app.control.add_consumer(queue)
        while client.llen(queue) or client.hlen("unacked"):
            time.sleep(0.002)
        taken = time.perf_counter() - began
    app.control.cancel_consumer(queue, reply=True)
    return calls / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--pool", default="prefork")
    parser.add_argument("--concurrency", type=int, default=2)
    asked = parser.parse_args()
    broker = RedisServer().start()
    fleet = Fleet(broker.url)
    try:
        quiet = ("--loglevel", "WARNING")
        fleet.start("tests.benchmarks.celery", pool=asked.pool, concurrency=asked.concurrency, options=quiet)
        app = make_app(broker.url)
        for name in ("plain", "shaped"):
            per_second(app, broker, name, f"warm-{name}", 200)
        ratios = []
        for pair in range(asked.pairs):
            order = ("plain", "shaped") if pair % 2 == 0 else ("shaped", "plain")
            found = {name: per_second(app, broker, name, f"{name}-{pair}", asked.calls) for name in order}
            ratios.append(found["shaped"] / found["plain"])
            print(f"plain {found['plain']:6.0f}/s  shaped {found['shaped']:6.0f}/s  {ratios[-1]:.3f}")
        verdict = "reached" if median(ratios) >= GOAL else "missed"
        print(f"median of {len(ratios)} pairs: {median(ratios):.3f}, goal {GOAL:.2f}: {verdict}")
    finally:
        fleet.close()
        broker.close()


if __name__ == "__main__":
    main()
