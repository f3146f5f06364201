"""The app whose tasks record their starts, and the functions that read these records.

The settings in which workers differ (broker, store, conf, queues) travel in `env`, which `settings(…)` makes.
"""

import json
import os
import signal
import time
from collections import defaultdict
from typing import NamedTuple

import redis
from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast

from shapekit import listen
from shapekit.integrations.celery import ShapedTask
from shapekit.stores.redis import RedisStore
from shapekit.stores.resilient import ResilientStore

from . import files  # noqa: F401 - the broker files://

LOCAL_SHARE = 0.25
MODULE = "tests.integrations.celery.running"
RATES = {"fast": "40/s", "steady": "10/s", "brisk": "20/s", "slow": "2/s"}


def settings(**what):
    """The environment that gives these settings to a worker."""
    return {"RUNNING": json.dumps(what)}


def store_from(text, url):
    """`None`: the broker's; a URL; or "local": resilient, alone at a quarter of the rate in an outage."""
    if text != "local":
        return text
    return ResilientStore(RedisStore.from_url(url), on_outage="local", share=LOCAL_SHARE)


def make_app(url, **what):
    """Shaped tasks named after their rates, each with one key for each test, and one unshaped task."""
    what = what or json.loads(os.environ.get("RUNNING", "{}"))
    app = Celery("running", broker=what.get("broker", url), set_as_current=False)
    app.conf.update(
        worker_prefetch_multiplier=1,
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        task_default_queue="tasks",
        shapekit_store=store_from(what.get("store"), url),
    )
    app.conf.update(what.get("conf", {}))
    if "topics" in what:
        world = Exchange("world", type="topic")
        app.conf.task_queues = [Queue(name, world, pattern) for name, pattern in what["topics"].items()]
    if "broadcast" in what:
        app.conf.task_queues = [Queue("tasks"), Broadcast(what["broadcast"])]
    worker = os.getpid()
    book = redis.Redis.from_url(what.get("book", url))
    if "heard" in what:
        listen(
            lambda event: book.rpush(
                what["heard"], json.dumps([type(event).__name__, *map(str, vars(event).values())])
            )
        )

    def shaped(name, rate):
        def run(self, where, number, takes=0.0):
            reservation = self.shaped.admission.reservation
            started, late = time.monotonic(), time.time() - reservation.departs_at
            place = f"{reservation.grant.generation}:{reservation.grant.start}"
            row = [started, number, self.request.id, reservation.departs_at, worker, takes, late, place]
            # Repeated once after a lost connection, because the tests need every record.
            for attempt in range(100):
                try:
                    book.rpush(f"starts:{where}", json.dumps(row))
                    break
                except redis.RedisError:
                    if attempt == 99:
                        raise
                    time.sleep(0.1)
            if takes < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(takes)

        shape = {"rate": rate, "name": name, "key": "{where}"}
        if "grace" in what:
            shape["grace"] = what["grace"]
        return app.task(run, base=ShapedTask, bind=True, name=name, shape=shape, shared=False)

    for name, rate in RATES.items():
        shaped(name, rate)

    @app.task(name="plain", shared=False)
    def plain(where, sent):
        book.rpush(f"plain:{where}", time.monotonic() - sent)

    return app


class Start(NamedTuple):
    """The record that a task writes when it starts."""

    at: float
    number: int
    id: str
    slot: float
    worker: int
    takes: float
    late: float
    """Seconds from its slot to its start, on the task's clock."""
    place: str = ""
    """The slot's position in the line. It contains the instant of the slot as far as the task knows it: if
    that slot had passed before the line was moved again, it is the instant from before the line was moved at
    all.
    """

    @property
    def due(self) -> float:
        """The slot on the line's own time, which stands still for late calls."""
        return int(self.place.partition(":")[2]) / 1_000_000


def starts(book, where):
    """The starts so far, in order. A record written twice, because a reply was lost, counts once."""
    return sorted(Start(*json.loads(row)) for row in set(book.lrange(f"starts:{where}", 0, -1)))


def most_in(rows, window_s):
    """The most starts in any half-open window."""
    most = first = 0
    for last, row in enumerate(rows):
        while row.at - rows[first].at >= window_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def undisturbed(rows, stalls):
    """The starts as they would have been without stalls of the machine: never before their slots.

    A slot that was missed stays missed.
    """
    return sorted(row._replace(at=stalls.undone(row.at - row.late, row.at)) for row in rows)


def shared_slots(rows):
    """Positions in the line that more than one start has used."""
    users = defaultdict(list)
    for row in rows:
        users[row.place].append(row)
    return {place: found for place, found in users.items() if len(found) > 1}


def parked(book, prefix=""):
    """The number of parked messages."""
    return book.zcard(f"{prefix}{{shapekit:celery}}:parked")
