"""A Celery worker: `python -m tests.integrations.celery.launch MODULE BROKER_URL READY_KEY [worker options]`.

The module has `make_app(url)`, which makes the app. The worker sets READY_KEY once it consumes.
"""

import importlib
import sys

import celery
import redis
from celery.signals import worker_ready


def main(module, url, ready, *options):
    app = importlib.import_module(module).make_app(url)

    @worker_ready.connect(weak=False)
    def announce(**_):
        with redis.Redis.from_url(url) as client:
            client.rpush(ready, "ready")

    app.worker_main(["worker", *options])


if __name__ == "__main__":
    celery.maybe_patch_concurrency()
    main(*sys.argv[1:])
