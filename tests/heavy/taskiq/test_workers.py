"""taskiq's own workers, two of them, on each of the brokers."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from taskiq import InMemoryBroker

from shapekit import ConfigError, Policy
from shapekit.integrations.taskiq import ShapedReceiver, shaped_task
from tests.heavy.queues.fleet import BIN, distinct, most_in, most_in_a_second, running, span_of

RECEIVER = "shapekit.integrations.taskiq:ShapedReceiver"
COMMAND = (BIN / "taskiq", "worker", "--workers", "1", "--receiver", RECEIVER, "tasks:broker")


@pytest.fixture(scope="module", params=["stream", "list"])
def fleet(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "QUEUES_BROKER", request.param)
        with running(Path(__file__).parent, "tasks", COMMAND) as fleet:
            fleet.wait_for_all(lambda: send(fleet.app, (fleet.app.free, 0)))
            yield fleet


@pytest.fixture
def app(fleet):
    return fleet.app


def send(app, *calls):
    """Send tasks, and return them."""

    async def all_of_them():
        return [await task.kiq(*args) for task, *args in calls]

    return on_a_loop(app, all_of_them)


def results(app, tasks):
    """The results of tasks."""

    async def all_of_them():
        return [await task.wait_result(check_interval=0.1, timeout=20) for task in tasks]

    return on_a_loop(app, all_of_them)


def outcomes(app, tasks):
    """The outcomes of tasks: their results, or their errors."""
    return [result.error or result.return_value for result in results(app, tasks)]


def on_a_loop(app, function):
    async def run():
        try:
            return await function()
        finally:
            # A pool of connections belongs to one loop.
            await app.broker.connection_pool.disconnect()
            await app.broker.result_backend.redis_pool.disconnect()

    return asyncio.run(run())


def test_two_workers_share_one_rate(app, fleet):
    with fleet.watched() as witness:
        send(app, *((app.quick, number) for number in range(200)))
        starts = fleet.wait("quick", 200)
    assert distinct(starts) == len(starts) == 200
    assert most_in_a_second(starts, witness) <= 41
    assert span_of(starts, witness) <= 199 / 40 * 1.05


def test_each_key_has_its_rate_and_a_task_that_comes_back_has_its_slot(app, fleet):
    accounts = [{"name": name} for name in ("anna", "ben")]
    tasks = send(app, *((app.slow, account, number) for number in range(5) for account in accounts))
    for account in ("anna", "ben"):
        starts = fleet.wait(f"slow:{account}", 5)
        assert distinct(starts) == 5
        assert 3.5 <= span_of(starts) <= 4.5
    # No retry was counted, and labels are what they were.
    assert outcomes(app, tasks) == [[["max_retries", "retry_on_error", "some"], True]] * 10
    # No slot was taken twice either, or the next task would come later.
    policy = Policy("1/s", name="slow", store=fleet.server.url)
    assert policy.forecast(key="anna").first_in <= 1.0
    policy.close()


def test_a_task_comes_back_as_it_was_received(app, fleet):
    """Middleware sees the task again as it was sent, and not as middleware left it."""
    send(app, *((app.sealed, number) for number in range(4)))
    assert distinct(fleet.wait("sealed", 4)) == 4


def test_a_refused_task_fails_at_once_or_comes_back(app, fleet):
    refused_results = results(app, send(app, *((app.refused, number) for number in range(4))))
    assert [type(result.error).__name__ for result in refused_results].count("QueueFullError") == 2
    # The task is not retried, although it has the retry label.
    assert not any("_retries" in result.labels for result in refused_results)
    assert distinct(fleet.wait("refused", 2)) == 2
    send(app, *((app.patient, number) for number in range(4)))
    starts = fleet.wait("patient", 4)
    assert distinct(starts) == len(starts) == 4
    assert most_in(starts, 0.4) == 1


def test_a_task_that_taskiq_retries_takes_another_slot(app, fleet):
    send(app, (app.failing, 0))
    starts = fleet.wait("failing", 2)
    assert span_of(starts) >= 0.9


def test_tasks_that_acknowledge_by_hand_run_once(app, fleet):
    if not hasattr(app.broker, "idle_timeout"):
        return
    send(app, *((app.manual, number) for number in range(3)))
    fleet.wait("manual", 3)
    group = fleet.notes.xpending(app.broker.queue_name, app.broker.consumer_group_name)
    assert group["pending"] == 0


def test_tasks_without_a_shape_do_not_wait(app, fleet):
    send(app, *((app.slow, {"name": "queue"}, number) for number in range(100)))
    at = time.time()
    send(app, (app.free, 1))
    assert fleet.wait("free", 1)[-1][0] - at < 2.0


def test_an_error_in_a_key_is_the_error_of_the_task(app):
    (error,) = outcomes(app, send(app, (app.wrong, {"name": "anna"})))
    assert "nothing" in str(error)


def test_a_killed_worker_loses_no_task(app, fleet):
    with fleet.watched() as witness:
        send(app, *((app.killed, number) for number in range(160)))
        before = fleet.wait("killed", 40)
        fleet.kill(fleet.workers[0])
        fleet.start(1)
        # A list broker knows only its list: a task that the worker has just taken from it is lost, as without
        # shapekit. A task that waited for its slot is not.
        is_lost = 0 if hasattr(app.broker, "idle_timeout") else 3

        def found(starts):
            # A stream broker looks for the messages of a dead worker only when another message has come.
            send(app, (app.nothing,))
            return distinct(starts)

        starts = fleet.wait("killed", 160 - is_lost, found)
    assert len(before) < 160
    assert most_in_a_second(starts, witness) <= 41
    # Messages that the broker itself delivers again run twice, as without shapekit.
    assert len(starts) - distinct(starts) <= 5


def test_a_store_that_workers_cannot_share_is_refused():
    def task(): ...

    with pytest.raises(ConfigError, match="is in the memory of each process"):
        shaped_task(rate="1/s")(task)


def test_a_broker_that_tasks_cannot_be_put_back_into_is_refused():
    with pytest.raises(ConfigError, match="keeps no list or stream"):
        ShapedReceiver(InMemoryBroker())


def test_a_task_that_is_called_waits_where_it_is_called(app):
    async def twice():
        for number in range(2):
            await app.called(number)
        await app.CALLED.aclose()

    at = time.monotonic()
    asyncio.run(twice())
    assert time.monotonic() - at >= 0.2
