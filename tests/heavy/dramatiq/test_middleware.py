"""Messages that were put back with their slots, and that never reach their actors afterwards."""

import time
from types import SimpleNamespace

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Middleware, SkipMessage

from shapekit import Policy
from shapekit._adapters.tasks import slot_header_of
from shapekit.integrations.dramatiq import SLOT_HEADER, ShapedActors
from tests.redis_server import RedisServer


@pytest.fixture(scope="module")
def server():
    with RedisServer() as server:
        yield server


class Skipping(Middleware):
    """Skips a message that comes back with a slot, or enqueues it once more."""

    def __init__(self, again):
        self.again = again
        self.slots = []

    def before_process_message(self, broker, message):
        self.slots.append(message.options.get(SLOT_HEADER))
        if self.slots[-1] is not None:
            if self.again:
                broker.enqueue(message.copy())
            raise SkipMessage("not now")


@pytest.fixture
def run(server):
    def run(policy, *middleware, ends, **options):
        """Send two messages, of which the second is put back, and wait until that has ended so many times."""
        broker, ran, ended = RedisBroker(url=server.url, namespace=policy.name), [], []

        class Ending(Middleware):
            def after_process_message(self, broker, message, *, result=None, exception=None):
                ended.append(message.args[0])

            after_skip_message = after_process_message

        # Middleware runs in reverse after a message: this one is the last.
        for each in (Ending(), *middleware, ShapedActors(store=server.url)):
            broker.add_middleware(each)

        @dramatiq.actor(broker=broker, shape={"policy": policy}, max_retries=0, **options)
        def actor(number):
            ran.append(number)

        worker = dramatiq.Worker(broker, worker_threads=1)
        worker.start()
        for number in range(2):
            actor.send(number)
        deadline = time.monotonic() + 20
        while len(ended) < 1 + ends:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        worker.stop()
        # The broker itself closes nothing, and leaves its connections to the collector.
        broker.client.connection_pool.disconnect()
        return ran

    return run


@pytest.fixture
def policy(server, request):
    policy = Policy("1 per 2s", quota="10/day", name=request.node.name, store=server.url)
    yield policy
    policy.close()


def test_a_message_that_has_become_too_old_gives_its_slot_back(run, policy):
    assert run(policy, ends=2, max_age=1000) == [0]
    assert policy.quotas()[0].used == 1
    assert policy.forecast().first_in <= 2.0


def test_a_message_that_other_middleware_skips_gives_its_slot_back(run, policy):
    assert run(policy, Skipping(again=False), ends=2) == [0]
    assert policy.quotas()[0].used == 1
    assert policy.forecast().first_in <= 2.0


def test_a_message_that_other_middleware_enqueues_again_takes_another_slot(run, policy):
    """The message's own slot was given back, and another call may have it by now."""
    skipping = Skipping(again=True)
    assert run(policy, skipping, ends=3) == [0, 1]
    first, second, brought, again = skipping.slots
    assert (first, second, again) == (None, None, None)
    assert brought is not None
    assert policy.quotas()[0].used == 2


@pytest.fixture
def brought(policy, server):
    """Middleware with an actor, and a message of it whose slot has just come."""
    broker = RedisBroker(url=server.url, namespace=policy.name, middleware=[ShapedActors()])
    dramatiq.actor(broker=broker, shape={"policy": policy}, actor_name="actor")(print)
    slot_header = slot_header_of(policy.shaper.reserve())
    return broker.middleware[0], SimpleNamespace(actor_name="actor", options={SLOT_HEADER: slot_header})


def test_a_message_that_a_dead_worker_may_have_processed_is_counted(policy, brought):
    middleware, message = brought
    middleware.after_skip_message(None, message)
    assert policy.quotas()[0].used == 1


@pytest.mark.parametrize("redelivered", [True, False])
def test_a_message_that_rabbitmq_delivers_again_takes_another_slot(brought, redelivered):
    middleware, message = brought
    message.redelivered = redelivered
    middleware.before_process_message(None, message)
    assert (SLOT_HEADER in message.options) is not redelivered


def test_a_message_that_is_put_back_twice_takes_two_slots(run, policy, monkeypatch):
    """The broker got the first copy, but its answer was lost."""
    enqueue, lost = RedisBroker.enqueue, []

    def losing(self, message, *, delay=None):
        sent = enqueue(self, message, delay=delay)
        if delay is not None and not lost:
            lost.append(message.options[SLOT_HEADER])
            raise ConnectionResetError
        return sent

    monkeypatch.setattr(RedisBroker, "enqueue", losing)
    assert run(policy, ends=3) == [0, 1, 1]
    assert policy.quotas()[0].used == 3
