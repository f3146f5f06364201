"""An app whose workers keep batches of slots for long, so that tests can observe what becomes of them."""

import redis
from celery import Celery

from shapekit.integrations.celery import ShapedTask, worker

RATES = {"rarely": ("1/min burst 50", 3600), "often": ("1/s burst 50", 3)}
"""The rate of each task, and for how many seconds a batch of it is used."""


def make_app(url):
    worker.LEAST_GRACE_S = 3600
    app = Celery("batching", broker=url, set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
    book = redis.Redis.from_url(url)

    def shaped(name, rate, grace_s):
        def run(self, where):
            book.rpush(f"ran:{where}", self.shaped.admission.reservation.grant.version)

        shape = {"rate": rate, "grace": grace_s, "key": "{where}", "name": name}
        app.task(run, base=ShapedTask, bind=True, name=name, shape=shape, shared=False)

    for name, (rate, grace_s) in RATES.items():
        shaped(name, rate, grace_s)
    return app
