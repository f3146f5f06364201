"""A shaped no-op task that never has to wait, beside the plain one."""

from __future__ import annotations

import time
from statistics import median

from celery import Celery

from shapekit.integrations.celery import ShapedTask

from ..integrations.celery.fleet import Fleet
from ..redis_server import RedisServer
from .progress import say
from .tables import Column, Effort, Goal, Group, Line, Table

NAME = "celery"
METHOD = """
Empty tasks a second of one worker with two pool processes and Redis as the broker, until every message is
acknowledged: plain, with a shape that is never full, with Celery's own `rate_limit`, never reached. The
ratio is to the plain tasks of the same round.
"""
GOAL = 0.80
SPEED, SHARE = "tasks a second", "of plain"
TASKS = ("plain", "shaped", "rate_limit")


def make_app(url: str) -> Celery:
    """Tasks that do nothing."""
    app = Celery("benchmark", broker=url, set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)

    @app.task(name="plain", shared=False)
    def plain() -> None:
        pass

    shape = {"rate": "1000000/s", "burst": 1_000_000}

    @app.task(name="shaped", base=ShapedTask, shape=shape, shared=False)
    def shaped() -> None:
        pass

    @app.task(name="rate_limit", rate_limit="1000000/s", shared=False)
    def limited() -> None:
        pass

    return app


def per_second(app: Celery, broker: RedisServer, name: str, queue: str, calls: int) -> float:
    """Tasks a second of a worker."""
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


def measure(effort: Effort) -> Group:
    """Rounds of all three; every second one runs backwards."""
    rounds = 2 * effort.rounds
    calls = max(200, effort.of(2_000))
    speeds: dict[str, list[float]] = {name: [] for name in TASKS}
    broker = RedisServer().start()
    fleet = Fleet(broker.url)
    try:
        fleet.start(
            "tests.benchmarks.celery", pool="prefork", concurrency=2, options=("--loglevel", "WARNING")
        )
        app = make_app(broker.url)
        for name in TASKS:
            per_second(app, broker, name, f"warm-{name}", 200)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for name in TASKS if number % 2 == 0 else reversed(TASKS):
                speeds[name].append(per_second(app, broker, name, f"{name}-{number}", calls))
    finally:
        fleet.close()
        broker.close()
    shares = {
        name: [speed / plain for speed, plain in zip(speeds[name], speeds["plain"], strict=True)]
        for name in TASKS
    }
    libraries = {"plain": "celery", "shaped": "shapekit", "rate_limit": "celery"}
    lines = [
        Line(libraries[name], name, {SHARE: shares[name], SPEED: speeds[name]})
        for name in ("shaped", "plain", "rate_limit")
    ]
    table = Table("Celery", [Column(SHARE, "×", 3), Column(SPEED, digits=0)], lines)
    goal = Goal("shaped / plain tasks, a second", median(shares["shaped"]), GOAL, less=False)
    return Group(NAME, "Celery", METHOD, [table], [goal])
