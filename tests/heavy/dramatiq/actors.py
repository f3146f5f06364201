"""Actors for the workers in these tests: `dramatiq actors` runs them."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from shapekit.integrations.dramatiq import ShapedActors
from tests.heavy.queues.notes import note, note_worker, url

URL = url()

broker = RedisBroker(url=URL, heartbeat_timeout=2000, maintenance_chance=1_000_000)
broker.add_middleware(ShapedActors(store=URL))
broker.add_middleware(CurrentMessage())
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(shape={"rate": "40/s"}, max_retries=0)
def quick(number):
    note("quick", number)


@dramatiq.actor(shape={"rate": "40/s"}, max_retries=0)
def killed(number):
    note("killed", number)


@dramatiq.actor(shape={"rate": "1/s", "key": "{account}"}, max_retries=0, store_results=True)
def slow(account, number):
    note(f"slow:{account}", number)
    return CurrentMessage.get_current_message().options.get("retries", 0)


@dramatiq.actor(shape={"rate": "1/s", "max_wait": "1.5s"}, store_results=True)
def refused(number):
    note("refused", number)
    return number


@dramatiq.actor
def failed(message, error):
    note(f"failed:{error['type']}", message["args"][0])


@dramatiq.actor(shape={"rate": "1/h", "max_wait": 0}, on_failure="failed", throws=ValueError, min_backoff=10)
def hourly(number):
    note("hourly", number)
    raise ValueError(number)


@dramatiq.actor(shape={"rate": "2/s", "max_wait": 0, "on_reject": "retry"}, max_retries=0)
def patient(number):
    note("patient", number)


@dramatiq.actor(shape={"rate": "2/s"}, max_retries=1, min_backoff=10, max_backoff=10)
def failing(number):
    note("failing", number)
    raise ValueError(number)


@dramatiq.actor(shape={"rate": "5/s"})
def called(number):
    note("called", number)


@dramatiq.actor
def free(number):
    note_worker(number)
