"""The app of the Celery workers of a fleet: a task that makes one call, and notes when it began to."""

import json
import os
import threading
import time
from contextlib import suppress

import redis
import requests
from celery import Celery

from shapekit.integrations.celery import ShapedTask

from .worker import Job

JOB = "STRICT_JOB"
"""The variable of the environment that holds the job of a worker, in JSON."""
NAME, QUEUE, LEFT = "call", "strict", "left"


def make_app(url):
    job = Job(*json.loads(os.environ[JOB]))
    app = Celery("strict", broker=url, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        task_default_queue=QUEUE,
        shapekit_store=job.redis,
        worker_prefetch_multiplier=1,
    )
    # Modules that are loaded for its first connection would delay a call that has left already.
    with suppress(requests.ConnectionError):
        requests.get("http://127.0.0.1:9/")
    client, mine = redis.Redis.from_url(url), threading.local()

    @app.task(name=NAME, base=ShapedTask, bind=True, shared=False, shape={"rate": job.rate}, max_retries=None)
    def call(self):
        at = time.monotonic()
        if not hasattr(mine, "session"):
            mine.session = requests.Session()
        response = mine.session.get(f"http://127.0.0.1:{job.port}/")
        client.rpush(LEFT, at)
        if response.status_code == 429:
            raise self.shaped.throttled(response)

    return app
