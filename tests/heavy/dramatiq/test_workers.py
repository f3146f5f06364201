"""Dramatiq's own workers, two of them."""

import time
from pathlib import Path

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import MiddlewareError
from dramatiq.results.errors import ResultFailure, ResultMissing

from shapekit import Policy
from shapekit.integrations.dramatiq import ShapedActors
from tests.heavy.queues.fleet import BIN, distinct, most_in, most_in_a_second, running, span_of

COMMAND = (BIN / "dramatiq", "actors", "--processes", "1", "--threads", "32")


@pytest.fixture(scope="module")
def fleet():
    with running(Path(__file__).parent, "actors", COMMAND) as fleet:
        fleet.wait_for_all(lambda: fleet.app.free.send(0))
        yield fleet


@pytest.fixture
def app(fleet):
    return fleet.app


def test_two_workers_share_one_rate(app, fleet):
    with fleet.watched() as witness:
        for number in range(200):
            app.quick.send(number)
        starts = fleet.wait("quick", 200)
    assert distinct(starts) == len(starts) == 200
    assert most_in_a_second(starts, witness) <= 41
    assert span_of(starts, witness) <= 199 / 40 * 1.05


def test_each_key_has_its_rate_and_a_message_that_comes_back_has_its_slot(app, fleet):
    messages = [app.slow.send(account, number) for number in range(5) for account in ("anna", "ben")]
    with pytest.raises(ResultMissing):
        messages[-1].get_result()  # and is not stored before it has run
    for account in ("anna", "ben"):
        starts = fleet.wait(f"slow:{account}", 5)
        assert distinct(starts) == 5
        assert 3.5 <= span_of(starts) <= 4.5
    # No retry was counted.
    assert [message.get_result(block=True) for message in messages] == [0] * 10
    # No slot was taken twice either, or the next message would come later.
    policy = Policy("1/s", name="slow", store=fleet.server.url)
    assert policy.forecast(key="anna").first_in <= 1.0
    policy.close()


def test_a_refused_message_fails_at_once_or_comes_back(app, fleet):
    messages = [app.refused.send(number) for number in range(4)]
    outcomes = []
    for message in messages:
        try:
            outcomes.append(message.get_result(block=True))
        except ResultFailure as failure:
            outcomes.append(failure.orig_exc_type)
    assert outcomes.count("QueueFullError") == 2
    for number in range(4):
        app.patient.send(number)
    starts = fleet.wait("patient", 4)
    assert distinct(starts) == len(starts) == 4
    assert most_in(starts, 0.4) == 1


def test_a_refused_message_is_not_retried_and_its_on_failure_runs(app, fleet):
    for number in range(3):
        app.hourly.send(number)
    assert distinct(fleet.wait("failed:QueueFullError", 2)) == 2
    # Dramatiq handles the actor's other errors as before.
    assert distinct(fleet.wait("failed:ValueError", 1)) == 1
    assert len(fleet.starts("hourly")) == 1
    assert len(fleet.starts("failed:QueueFullError")) == 2


def test_a_message_that_dramatiq_retries_takes_another_slot(app, fleet):
    app.failing.send(0)
    starts = fleet.wait("failing", 2)
    assert span_of(starts) >= 0.4


def test_actors_without_a_shape_do_not_wait(app, fleet):
    for number in range(100):
        app.slow.send("queue", number)
    at = time.time()
    app.free.send(1)
    assert fleet.wait("free", 1)[-1][0] - at < 2.0


def test_a_killed_worker_loses_no_message(app, fleet):
    with fleet.watched() as witness:
        for number in range(160):
            app.killed.send(number)
        before = fleet.wait("killed", 40)
        fleet.kill(fleet.workers[0])
        fleet.start(1)
        starts = fleet.wait("killed", 160, distinct)
    assert len(before) < 160
    assert most_in_a_second(starts, witness) <= 41
    # A message that the killed worker was about to acknowledge runs twice, as without shapekit.
    assert len(starts) - distinct(starts) <= 32


def test_a_store_that_workers_cannot_share_is_refused():
    broker = StubBroker()
    broker.add_middleware(ShapedActors())
    with pytest.raises(MiddlewareError, match="is in the memory of each process"):
        dramatiq.actor(broker=broker, shape={"rate": "1/s"})(print)


def test_an_actor_that_is_called_waits_where_it_is_called(app):
    at = time.monotonic()
    for number in range(2):
        app.called(number)
    assert time.monotonic() - at >= 0.2
