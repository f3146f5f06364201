"""`shape_publish`: a task leaves its producer with its slot."""

import json
import os
import time
from contextlib import nullcontext

import kombu
import pytest
from celery import Celery
from celery.exceptions import Retry
from kombu.exceptions import EncodeError, OperationalError
from kombu.transport.redis import Channel
from redis.exceptions import ConnectionError as GoneError

from shapekit import Decision, QueueFullError
from shapekit.events import Cancelled, Reserved
from shapekit.integrations.celery import ShapedTask, SlotHeader, shape_publish

from ...redis_server import free_port
from ...witness import watched
from .fleet import PATIENCE_S, eventually

BACKLOG = "nobody-consumes-it"


def left_behind(broker, queue):
    """The messages of a queue without a consumer, in order."""
    with broker.client() as client:
        return [json.loads(text) for text in reversed(client.lrange(queue, 0, -1))]


class TestWithoutAWorker:
    def test_a_message_carries_its_eta_and_its_slot(self, app, broker, account):
        for _ in range(3):
            shape_publish(app.tasks["add"], (1,), {"account": account}, queue=account)
        first, second, third = (message["headers"] for message in left_behind(broker, account))
        assert first["eta"] < second["eta"] < third["eta"]
        assert all(headers["shapekit"] for headers in (first, second, third))

    def test_where_the_queue_is_full_nothing_is_published(self, app, broker, account):
        task = app.tasks["short_fail"]
        for _ in range(2):
            shape_publish(task, (account,), queue=account)
        assert task.shaped.policy.shaper.reserve(account, cost=1_000, max_wait="1h")
        for _ in range(3):
            with pytest.raises(QueueFullError):
                shape_publish(task, (account,), queue=account)
        assert len(left_behind(broker, account)) == 2

    def test_a_message_that_cannot_be_published_gives_its_slot_back(self, app, account):
        add = app.tasks["add"]
        shape_publish(add, (1,), {"account": account}, queue=BACKLOG)
        events = []
        with add.shaped.policy.listen(events.append):
            for _ in range(20):
                with pytest.raises(EncodeError):
                    shape_publish(add, (object(),), {"account": account}, queue=BACKLOG)
        assert [type(event) for event in events] == [Reserved, Cancelled] * 20
        assert add.shaped.policy.forecast(key=account).first_in <= 0.1

    @pytest.mark.parametrize("lost", [1, 2])
    def test_where_the_answer_is_lost_one_message_has_the_slot(self, app, broker, account, monkeypatch, lost):
        """kombu publishes a second time, and then raises."""
        put, answers = Channel._put, iter([False] * lost)

        def losing(*args, **kwargs):
            put(*args, **kwargs)
            if not next(answers, True):
                raise GoneError

        monkeypatch.setattr(Channel, "_put", losing)
        rare = app.tasks["rare"]
        with pytest.raises(OperationalError) if lost == 2 else nullcontext():
            shape_publish(rare, (account,), queue=account)
        slots = [message["headers"].get("shapekit") for message in left_behind(broker, account)]
        assert [slot is not None for slot in slots] == [True, False]
        assert rare.shaped.policy.quotas(key=account)[0].used == 1

    def test_where_the_broker_refuses_connections_the_slot_is_given_back(self, app, broker, account):
        away = Celery(broker=f"amqp://127.0.0.1:{free_port()}//", set_as_current=False)
        away.conf.shapekit_store = broker.url

        @away.task(base=ShapedTask, name=account, shape={"quota": "3/day"}, shared=False)
        def task():
            """Never run here."""

        with pytest.raises(OperationalError):
            shape_publish(task, retry_policy={"max_retries": 1, "interval_start": 0})
        assert task.shaped.policy.quotas()[0].used == 0

    def test_a_message_that_cannot_carry_a_slot_takes_none(self, eager, refused):
        task = eager.shaped(lambda: None)
        eager.app.conf.update(task_always_eager=False, task_protocol=1)
        refused(lambda: shape_publish(task), "app.conf.task_protocol")
        assert task.shaped.policy.forecast().first_in == 0
        task.apply_async()

    def test_where_nothing_is_enforced_no_slot_is_taken(self, app, broker, account):
        for _ in range(2):
            shape_publish(app.tasks["measured"], (account,), queue=account)
        published = [message["headers"] for message in left_behind(broker, account)]
        assert [(headers["eta"], "shapekit" in headers) for headers in published] == [(None, False)] * 2

    def test_a_cost_travels_in_the_headers_also_if_the_task_is_sent_by_its_name(self, app, broker, account):
        app.tasks["weighed"].apply_async((account,), queue=account, shape_cost=2)
        app.send_task("elsewhere", queue=account, shape_cost=3, headers={"own": 1})
        app.signature("elsewhere", queue=account, shape_cost=4).apply_async()
        messages = left_behind(broker, account)
        assert [message["headers"]["shape_cost"] for message in messages] == [2, 3, 4]
        assert not any("shape_cost" in message["properties"] for message in messages)

    def test_own_headers_and_options_stay(self, app, broker, account):
        add = app.tasks["add"]
        headers = {"own": [1]}
        result = shape_publish(
            add, (1,), {"account": account}, queue=account, headers=headers, task_id=account, priority=3
        )
        assert result.id == account
        with broker.client() as client:
            (queue,) = client.keys(f"{account}*3")
        (message,) = left_behind(broker, queue)
        assert message["headers"]["id"] == account
        assert message["headers"]["own"] == [1]
        assert headers == {"own": [1]}

    def test_an_id_of_none_is_replaced_by_a_new_one(self, app, broker, account):
        result = shape_publish(app.tasks["add"], (1,), {"account": account}, queue=account, task_id=None)
        (message,) = left_behind(broker, account)
        assert result.id == message["headers"]["id"]
        assert json.loads(message["headers"]["shapekit"])[0] == f"{result.id}:0:0"

    def test_a_slot_further_away_than_the_broker_allows_gives_no_eta(self, app, broker, account):
        app.tasks["add"].shaped.policy.shaper.hold("1h", key=account)
        shape_publish(app.tasks["add"], (1,), {"account": account}, queue=account)
        (message,) = left_behind(broker, account)
        assert message["headers"]["eta"] is None
        assert message["headers"]["shapekit"]


class TestForAQuorumQueue:
    """Such a broker delays messages by whole seconds; Celery raises for fractions."""

    @pytest.fixture
    def published(self, monkeypatch):
        """The messages that would be published, without a broker."""
        sent = []
        monkeypatch.setattr(kombu.Producer, "publish", lambda _, body, **options: sent.append(options))
        return sent

    @pytest.fixture
    def task(self, broker, account):
        app = Celery(broker="amqp://nowhere", set_as_current=False)
        app.conf.update(task_default_queue_type="quorum", task_default_exchange_type="topic")
        app.conf.shapekit_store = broker.url
        shape = {"rate": "1/h", "burst": 10, "on_reject": "retry"}

        @app.task(base=ShapedTask, name=account, shape=shape, shared=False)
        def work():
            """Never run here."""

        return work

    @pytest.mark.parametrize(("held", "is_sent_ahead"), [("1us", False), ("900ms", False), ("10m", True)])
    def test_a_slot_that_is_near_is_waited_for_in_the_worker(self, published, task, held, is_sent_ahead):
        task.shaped.policy.shaper.hold(held)
        shape_publish(task)
        (options,) = published
        assert options["headers"]["shapekit"]
        assert (options["headers"]["eta"] is not None) is is_sent_ahead

    @pytest.mark.parametrize(("retry_after_us", "delay_s"), [(300_000, 1), (2_000_000, 2), (2_700_000, 3)])
    def test_a_task_that_was_refused_comes_back_no_earlier_than_it_may(
        self, published, task, retry_after_us, delay_s
    ):
        error = QueueFullError(Decision(False, 1, 1, 0, 0, retry_after_us), "default", 0.0, 0.0)
        slot_header = SlotHeader.refused({"id": "one"}, error).text()
        info = {"exchange": "celery", "routing_key": "celery"}
        task.push_request(
            id="one", called_directly=False, args=(), kwargs={}, delivery_info=info, shapekit=slot_header
        )
        with pytest.raises(Retry):
            task.run()
        (options,) = published
        *bits, queue = options["routing_key"].split(".")
        assert (int("".join(bits), 2), queue) == (delay_s, "celery")


@pytest.fixture(scope="module")
def worker(fleet):
    return fleet.start(pool="threads", concurrency=4)


@pytest.mark.usefixtures("worker")
class TestInAWorker:
    @pytest.mark.parametrize("name", ["add", "foreign"])
    def test_the_slot_is_used_and_no_other_taken(self, app, broker, worker, records, account, name):
        task, args, kwargs, rate = {
            "add": (app.tasks["add"], (1,), {"account": account}, "10/s"),
            "foreign": (app.tasks["billing.second"], (account,), {}, "10/s"),
        }[name]
        with watched(os.getpid(), broker.pid, worker.process.pid) as witness:
            began = time.monotonic()
            results = [shape_publish(task, args, kwargs) for _ in range(6)]
            for result in results:
                result.get(timeout=PATIENCE_S)
            ended = time.monotonic()
        starts = records.paced(account, 6, rate)
        assert sorted(start["id"] for start in starts) == sorted(result.id for result in results)
        # A task that a stall kept from running for longer than the grace, one slot, has taken another slot.
        if witness.stalls.within(began, ended) < 1 / 10:
            assert [start["id"] for start in starts] == [result.id for result in results]
            assert starts[-1]["slot"] - starts[0]["slot"] == pytest.approx(0.5, abs=1e-5)

    def test_a_cost_is_charged_once(self, app, broker, worker, records, account):
        with watched(os.getpid(), broker.pid, worker.process.pid) as witness:
            began = time.monotonic()
            results = [shape_publish(app.tasks["weighed"], (account,), shape_cost=5) for _ in range(3)]
            for result in results:
                result.get(timeout=PATIENCE_S)
            ended = time.monotonic()
        starts = records.paced(account, 3, "20/s burst 5")
        assert [start["cost"] for start in starts] == [5] * 3
        # Three quarters of a slot later, the task would have taken another slot.
        if witness.stalls.within(began, ended) < 3 / 80:
            assert starts[-1]["slot"] - starts[0]["slot"] == pytest.approx(0.5, abs=1e-5)

    def test_a_task_far_away_is_parked(self, app, records, account, broker):
        add = app.tasks["add"]
        add.shaped.policy.shaper.hold("1s", key=account)
        app.conf.shapekit_max_eta = 0.5
        try:
            result = shape_publish(add, (1,), {"account": account})
        finally:
            app.conf.shapekit_max_eta = 1200
        with broker.client() as client:
            eventually(lambda: client.zcard("{shapekit:celery}:parked"))
        assert result.get(timeout=PATIENCE_S) == 1
        records.paced(account, 1, "10/s")


@pytest.mark.parametrize("argument", [5, None, "add"], ids=str)
def test_an_argument_that_is_no_task_is_refused(refused, argument):
    refused(lambda: shape_publish(argument), "task")
