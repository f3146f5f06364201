"""What the workers run: `celery -A tasks worker`, with the broker in BROKER_URL."""

import os
import time

import redis
from celery import Celery

from shapekit.integrations.celery import ShapedTask

URL = os.environ.get("BROKER_URL", "redis://localhost")
app = Celery("tasks", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 1
records = redis.Redis.from_url(URL)


@app.task(base=ShapedTask, shape={"rate": "20/s", "key": "{account}"})
def sync(account: str, number: int) -> int:
    """A call to an API that allows each account twenty a second."""
    records.rpush(f"starts:{account}", time.time())
    return number


@app.task
def ping(called_at: float) -> float:
    """Does not call the API, and should not have to wait for tasks that do."""
    return time.time() - called_at
