"""A Celery worker: `python -m tests.integrations.celery.launch MODULE BROKER_URL READY_KEY [worker options]`.

The module makes the app: it has `make_app(url)`. When the worker consumes, that is told under the key.
"""

import importlib
import sys

import celery
import redis
from celery.signals import worker_ready


def main(module, url, ready, *options):
    app = importlib.import_module(module).make_app(url)

    @worker_ready.connect(weak=False)
    def tell(**_):
        with redis.Redis.from_url(url) as client:
            client.rpush(ready, "ready")

    app.worker_main(["worker", *options])


if __name__ == "__main__":
    celery.maybe_patch_concurrency()
    main(*sys.argv[1:])
