"""A fleet before a strict server: processes with several callers each, which share one rate on Redis."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import count, pairwise
from typing import NamedTuple

from celery import Celery

from ..benchmarks.departures import most_within, rate_reached
from ..integrations.celery.fleet import Fleet as Workers
from ..integrations.celery.fleet import eventually
from ..redis_server import RedisServer, shared_server
from ..together import go, outputs_of, started
from ..witness import Stalls, watched
from . import tasks
from .server import PAUSE_S, Arrival, StrictServer
from .worker import EVERY_S, STALL_S, Job

PATIENCE_S = 60.0
PATIENT = "socket_timeout=20&socket_connect_timeout=20"
"""A timeout so long that a loop which stalls for a second is late, and does not give up its answer."""
_numbers = count()


class Plan(NamedTuple):
    """A run of a fleet."""

    client: str
    rate: int
    limit: int
    """The most calls that the server takes in a second."""
    seconds: float
    stall: str = ""
    """What keeps the first process from running for 300 ms every 2 s: "stopped", "blocked", "collector"."""
    processes: int = 3
    callers: int = 10


@dataclass(frozen=True)
class Run:
    """The result of a plan."""

    plan: Plan
    arrivals: list[Arrival]
    by_process: list[list[float]]
    """When the calls of each process have left; of Celery's workers all together."""
    stalls: Stalls
    """What the machine has kept from running, the server among it."""

    @property
    def departures(self) -> list[float]:
        """The departures of all processes, in order."""
        return sorted(at for left in self.by_process for at in left)

    @property
    def refusals(self) -> int:
        return sum(arrival.refused for arrival in self.arrivals)

    @property
    def undisturbed(self) -> list[float]:
        """When calls would have arrived, had the machine stalled no process while they were on their way."""
        came = [arrival.at for arrival in self.arrivals]
        return [self.stalls.undone(left, at) for left, at in zip(self.departures, came, strict=True)]

    @property
    def stalled(self) -> float:
        """The share of the time for which the machine has kept a process from running; may be more than 1."""
        first, last = self.arrivals[0].at, self.arrivals[-1].at
        return self.stalls.within(first, last) / (last - first)

    @property
    def paused(self) -> float:
        """The share of the time for which refusals of the server require a pause."""
        first, last = self.arrivals[0].at, self.arrivals[-1].at
        refusals = [arrival.at for arrival in self.arrivals if arrival.refused]
        return sum(min(PAUSE_S, later - at) for at, later in pairwise([*refusals, last])) / (last - first)

    @property
    def share(self) -> float:
        """The share of the stated rate that was reached, between the first call and the last."""
        return rate_reached([arrival.at for arrival in self.arrivals if not arrival.refused]) / self.plan.rate

    @property
    def worst_second_there(self) -> int:
        return most_within([arrival.at for arrival in self.arrivals])

    @property
    def worst_second_here(self) -> int:
        return most_within(self.departures)

    def __repr__(self) -> str:
        return (
            f"{self.plan}: {self.refusals} refused of {len(self.arrivals)}, worst second "
            f"{self.worst_second_there} at the server and {self.worst_second_here} of departures, "
            f"{self.share:.3f} of the rate"
        )


def run(plan: Plan) -> Run:
    """Start all processes, let them begin at once, and collect what happened."""
    crew = in_celery if plan.client == "Celery" else in_processes
    with StrictServer(plan.limit) as server:
        departures, stalls = crew(plan, server)
        return Run(plan, server.arrivals(), departures, stalls)


def in_processes(plan: Plan, server: StrictServer) -> tuple[list[list[float]], Stalls]:
    """Workers of our own; when their calls left, and what they were kept from."""
    redis = shared_server()
    own = "" if plan.stall == "stopped" else plan.stall
    url, prefix = f"{redis.url}?{PATIENT}", f"strict{next(_numbers)}"
    job = Job(server.port, url, prefix, f"{plan.rate}/s", plan.callers)
    jobs = [job._replace(stall="" if number else own) for number in range(plan.processes)]
    commands = [("-m", "tests.strict.worker", plan.client, json.dumps(job)) for job in jobs]
    with (
        started(commands) as workers,
        watched(redis.pid, server.pid, *[worker.pid for worker in workers]) as witness,
    ):
        until = time.monotonic() + plan.seconds
        go(workers, until)
        if plan.stall == "stopped":
            stop(workers[0].pid, lambda: time.monotonic() > until - EVERY_S)
        outputs = outputs_of(workers, plan.seconds + PATIENCE_S)
    return [json.loads(output)["left"] for output in outputs], witness.stalls


def in_celery(plan: Plan, server: StrictServer) -> tuple[list[list[float]], Stalls]:
    """Celery's workers, each with a pool of threads; the tasks are there before they are."""
    with RedisServer() as broker, closing(Workers(broker.url)) as fleet, broker.client() as client:
        job = json.dumps(Job(server.port, f"{broker.url}?{PATIENT}", "", f"{plan.rate}/s", plan.callers))
        calls = round(plan.rate * plan.seconds)
        with Celery(broker=broker.url, set_as_current=False) as app:
            for _ in range(calls):
                app.send_task(tasks.NAME, queue=tasks.QUEUE)
        pool = {"pool": "threads", "concurrency": plan.callers, "env": {tasks.JOB: job}}
        workers = [fleet.launch(tasks.__name__, **pool) for _ in range(plan.processes)]
        pids = [worker.wait_ready().process.pid for worker in workers]
        with watched(broker.pid, server.pid, *pids) as witness:

            def is_over() -> bool:
                return client.llen(tasks.LEFT) >= calls

            if plan.stall == "stopped":
                stop(pids[0], is_over)
            eventually(is_over, plan.seconds + PATIENCE_S)
        return [[float(at) for at in client.lrange(tasks.LEFT, 0, -1)]], witness.stalls


def stop(pid: int, is_over: Callable[[], bool]) -> None:
    """Stop a process for 300 ms of every two seconds."""
    while not is_over():
        time.sleep(EVERY_S - STALL_S)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STALL_S)
        os.kill(pid, signal.SIGCONT)
