"""The app whose tasks write down when they have started, and how to read that.

What differs between workers is told in `env`, by `told(…)`: their broker, store, conf and queues.
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


def told(**what):
    """The environment of a worker that was told this."""
    return {"RUNNING": json.dumps(what)}


def store_from(text, url):
    """`None`: the broker's; a URL; or "local": resilient, alone at a quarter of the rate in an outage."""
    if text != "local":
        return text
    return ResilientStore(RedisStore.from_url(url), on_outage="local", share=LOCAL_SHARE)


def make_app(url, **what):
    """Shaped tasks named as their rates, each with as many keys as there are tests; and one that is not."""
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
            turn = self.shaped.admission.reservation
            started, late = time.monotonic(), time.time() - turn.departs_at
            place = f"{turn.grant.generation}:{turn.grant.start}"
            row = [started, number, self.request.id, turn.departs_at, worker, takes, late, place]
            # Once more where the connection was lost: what has run is to be known.
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
    """What a task has written down when it started."""

    at: float
    number: int
    id: str
    slot: float
    worker: int
    takes: float
    late: float
    """How long after its slot, by the task's clock."""
    place: str = ""
    """What its slot is in the line. Its instant is as far as that is known: of a slot that had passed before
    time stood still once more, it is that from before time stood still at all.
    """

    @property
    def due(self) -> float:
        """Its slot on the line's own time, which stands still for late calls."""
        return int(self.place.partition(":")[2]) / 1_000_000


def starts(book, where):
    """Who has started so far, in that order. What is written down twice, for want of an answer, is one."""
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
    """The starts as they would have been, had the machine kept nobody from running: never before their slots.

    A slot that was missed stays missed.
    """
    return sorted(row._replace(at=stalls.undone(row.at - row.late, row.at)) for row in rows)


def shared_slots(rows):
    """Places in the line that more than one start has used."""
    users = defaultdict(list)
    for row in rows:
        users[row.place].append(row)
    return {place: found for place, found in users.items() if len(found) > 1}


def parked(book, prefix=""):
    """How many are parked."""
    return book.zcard(f"{prefix}{{shapekit:celery}}:parked")
