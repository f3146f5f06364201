"""Brokers other than Redis, and a Redis with every option that kombu has for it."""

import os
from collections import Counter
from contextlib import closing

import pytest
from billiard.util import _run_after_forkers
from kombu import Connection, Consumer, Exchange
from kombu.utils.json import loads

from shapekit.integrations.celery import parking
from shapekit.integrations.celery.parking import Parking, Taker, park_of
from shapekit.stores.redis import RedisStore
from shapekit.testing import check_pace

from ...amqp_server import AmqpServer
from ...witness import watched
from .fleet import Fleet, eventually
from .running import MODULE, RATES, make_app, parked, settings, shared_slots, starts

pytestmark = pytest.mark.long

PREFETCH = {"worker_prefetch_multiplier": 16}
"""Settings for a RabbitMQ that cannot raise the prefetch: more than the tasks that wait in a worker."""
PARKED = 5
"""At some time this many tasks are parked, also on a machine that is hardly faster than the tasks."""


@pytest.fixture
def book(broker):
    with broker.client(decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def fleet(broker):
    with closing(Fleet(broker.url)) as fleet:
        yield fleet


def in_files(tmp_path):
    """A folder as the broker."""
    folder = {name: str(tmp_path / name) for name in ("data_folder_in", "control_folder")}
    (tmp_path / "data_folder_in").mkdir()
    return {**folder, "data_folder_out": folder["data_folder_in"], "polling_interval": 0.02}


@pytest.fixture
def amqp():
    """An empty database, also on a server that other programs use."""
    with closing(AmqpServer()) as server, Connection(server.url) as connection:
        for queue in ("tasks", "eu", "us"):
            connection.default_channel.queue_delete(queue)
        yield server


@pytest.fixture(params=["files", "amqp"])
def elsewhere(request, broker, tmp_path):
    """Settings that give workers and publishers a broker that is no Redis."""
    conf = {"task_compression": "gzip"}
    if request.param == "amqp":
        return {"broker": request.getfixturevalue("amqp").url, "store": broker.url, "conf": conf | PREFETCH}
    conf["broker_transport_options"] = in_files(tmp_path)
    return {"broker": "files://", "store": broker.url, "conf": conf}


@pytest.fixture(params=["redis", "amqp"])
def anywhere(request, broker):
    """Settings that give them a broker with exchanges of all types."""
    if request.param == "redis":
        return {}
    return {"broker": request.getfixturevalue("amqp").url, "store": broker.url}


def in_store(book):
    """The names and records of parked messages in the store."""
    found = [book.hgetall(key) for key in book.keys("*:parked:messages")]
    return {name: loads(record) for records in found for name, record in records.items()}


def all_have_run(book, where, count):
    return eventually(lambda: len(rows := starts(book, where)) >= count and rows)


def test_tasks_run_with_another_broker_and_a_redis_as_the_store(fleet, book, broker, elsewhere):
    worker = fleet.start(MODULE, pool="threads", concurrency=4, env=settings(**elsewhere))
    app = make_app(broker.url, **elsewhere)
    with watched(os.getpid(), broker.pid, worker.process.pid) as witness:
        for number in range(60):
            app.tasks["brisk"].delay("files", number)
        # Parked, and then acknowledged.
        eventually(lambda: len(in_store(book)) >= PARKED)
        rows = all_have_run(book, "files", 60)
    assert sorted(row.number for row in rows) == list(range(60))
    check_pace([row.due for row in rows], RATES["brisk"], tolerance="1us")
    assert rows[-1].at - rows[0].at <= 59 / 20 * 1.1 + witness.stalls.within(rows[0].at, rows[-1].at)
    assert not book.keys("*:parked*")


def test_lost_messages_in_the_store_keep_no_other_from_running(fleet, book, broker, elsewhere):
    app = make_app(broker.url, **elsewhere)
    first = fleet.start(MODULE, env=settings(**elsewhere))
    for number in range(30):
        app.tasks["steady"].delay("lost", number)
    eventually(lambda: len(in_store(book)) >= PARKED)
    first.stop()
    (key,) = book.keys("*:parked:messages")
    gone, broken, foreign = list(in_store(book))[:3]
    book.hdel(key, gone)
    book.hset(key, broken, "not what was parked")
    book.hset(key, foreign, '["7", "neither"]')
    second = fleet.start(MODULE, env=settings(**elsewhere))
    rows = all_have_run(book, "lost", 27)
    assert len({row.number for row in rows}) == 27
    eventually(lambda: not book.keys("*:parked:messages"))
    (unreadable,) = book.keys("*:parked:unreadable")
    assert sorted(book.hkeys(unreadable)) == sorted([broken, foreign])
    lines = [line for line in second.log.splitlines() if "parked message" in line]
    assert len(lines) == 3
    assert sum("is lost" in line for line in lines) == 1


def test_no_task_is_lost_with_a_worker_that_dies_between_its_claim_and_the_publishing(
    fleet, book, broker, elsewhere
):
    app = make_app(broker.url, **elsewhere)
    first = fleet.start(MODULE, env=settings(**elsewhere))
    for number in range(50):
        app.tasks["steady"].delay("claimed", number)
    eventually(lambda: len(in_store(book)) >= PARKED)
    # The worker gives back the tasks that wait in it: files know of no unacknowledged messages.
    first.stop()
    # The worker would have made this call next, and no other.
    (key,) = book.keys("*:parked")
    dead = Parking(
        lambda script, keys, what: book.eval(script, len(keys), *keys, *what), key[: -len(":parked")]
    )
    lost = dead.claim(60, 3, lease_s=1.0)
    assert len(lost) == 3
    fleet.start(MODULE, env=settings(**elsewhere))
    rows = all_have_run(book, "claimed", 50)
    assert sorted(row.number for row in rows) == list(range(50))
    assert not shared_slots(rows)
    eventually(lambda: not book.keys("*:parked*"))


def test_no_task_runs_twice_if_a_worker_dies_between_the_publishing_and_forgetting(
    fleet, book, broker, elsewhere
):
    app = make_app(broker.url, **elsewhere)
    first = fleet.start(MODULE, env=settings(**elsewhere))
    for number in range(40):
        app.tasks["steady"].delay("twice", number)
    eventually(lambda: len(in_store(book)) >= PARKED)
    first.stop()
    store = RedisStore.from_url(broker.url)
    with app.connection_for_write() as connection:
        park = park_of(app, Consumer(connection), Taker())
        park.drop = lambda claims: None  # it dies right here
        count = park.bring_back(60, 2, {})
        park.close()
    assert count == 2
    store.close()
    (key,) = book.keys("*:parked")
    # The lease ends.
    for name in book.zrange(key, 0, -1):
        book.zadd(key, {name: 0})
    fleet.start(MODULE, env=settings(**elsewhere))
    eventually(lambda: {row.number for row in starts(book, "twice")} == set(range(40)))
    eventually(lambda: not book.keys("*:parked*"))
    assert not shared_slots(starts(book, "twice"))


def test_two_apps_with_other_brokers_share_a_store(book, broker, elsewhere):
    one = make_app(broker.url, **elsewhere)
    other = make_app(broker.url, broker="memory://other", store=broker.url)
    with one.connection_for_write() as first, other.connection_for_write() as second:
        parks = [
            park_of(app, Consumer(connection), Taker()) for app, connection in ((one, first), (other, second))
        ]
        parks[0].park("name", 0, ["{}", ""])
        assert parks[1].bring_back(60, 10, {}) == 0
        assert [claim.name for claim in parks[0].claim(60, 10)] == ["name"]


def test_messages_that_are_due_start_while_others_are_brought_back(broker):
    app = make_app(broker.url, broker="memory://meanwhile", store=broker.url)
    there = []
    with app.connection_for_write() as connection, closing(connection.SimpleQueue("meanwhile")) as queue:
        for number in range(3):
            queue.put(number)
        park = park_of(app, Consumer(connection), Taker(), lambda: there.append(queue.qsize()))
        for number in range(3):
            park.put(str(number), 0, queue.get(block=False))
        assert park.bring_back(1, 10, {}) == 3
    assert there == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_process_that_a_worker_forks_leaves_its_connection_open(broker, amqp, monkeypatch):
    app = make_app(broker.url, broker=amqp.url, store=broker.url)
    monkeypatch.setattr(parking, "ONCE_MORE", {"max_retries": 0})
    with app.connection_for_write() as connection, closing(connection.SimpleQueue("eu")):
        park = park_of(app, Consumer(connection), Taker())
        for number in range(2):
            park.park(str(number), 0, ['{"routing_key": "eu", "headers": {}}', ""])
            assert park.bring_back(1, 10, {}) == 1
            if (child := os.fork()) == 0:
                _run_after_forkers()
                os._exit(0)
            os.waitpid(child, 0)
        park.close()


def test_sqs_delays_and_deduplicates_a_message_when_it_is_sent_and_not_when_it_comes_back(broker):
    """The broker would delay it once more, or drop it as a duplicate of the parked message."""
    app = make_app(broker.url, broker="memory://once", store=broker.url)
    once = {"DelaySeconds": 3, "delay_seconds": 3, "MessageDeduplicationId": "one"}
    app.tasks["slow"].apply_async(("once", 0), MessageGroupId="group", **once)
    with app.connection_for_write() as connection, closing(connection.SimpleQueue("tasks")) as queue:
        park = park_of(app, Consumer(connection), Taker())
        sent = queue.get(block=False)
        assert once.items() <= sent.properties.items()
        park.put("name", 0, sent)
        assert park.bring_back(1, 1, {}) == 1
        back = queue.get(block=False)
        back.ack()
    assert not once.keys() & back.properties.keys()
    assert back.properties["MessageGroupId"] == "group"


def test_a_redis_with_a_prefix_and_priorities_keeps_the_order(fleet, book, broker):
    options = {
        "global_keyprefix": "pre:",
        "priority_steps": list(range(10)),
        "queue_order_strategy": "priority",
    }
    conf = {"broker_transport_options": options, "task_default_priority": 5}
    app = make_app(broker.url, conf=conf)
    for number in range(10):
        app.tasks["slow"].apply_async(("prefix", number), priority=number % 2 * 9)
    # The urgent first, in the order of publishing.
    order = [*range(0, 10, 2), *range(1, 10, 2)]
    worker = fleet.start(MODULE, env=settings(conf=conf))
    with watched(broker.pid, worker.process.pid) as witness:
        eventually(lambda: parked(book, "pre:"))
        assert not parked(book)
        rows = all_have_run(book, "prefix", 10)
    # A task that a stall kept from running for a whole slot had to take another one.
    lost = witness.stalls.within(rows[0].at, rows[-1].at)
    assert lost > 1 / 2 or [row.number for row in rows] == order
    assert not shared_slots(rows)
    eventually(lambda: not book.hlen("pre:unacked"))
    assert not parked(book, "pre:")


def test_a_parked_message_comes_back_to_the_queue_it_came_from(fleet, book, broker, anywhere):
    """Also where another queue has a copy of its own."""
    what = {**anywhere, "topics": {"eu": "eu.#", "us": "*.us.*"}}
    app = make_app(broker.url, **what)
    with app.connection_for_write() as connection:
        for queue in app.conf.task_queues:
            queue(connection.default_channel).declare()
    for number in range(8):
        key = ("eu.west.one", "eu.us.east")[number % 2]
        app.tasks["slow"].apply_async(("topic", number), queue="eu", routing_key=key)
    for name in what["topics"]:
        fleet.launch(MODULE, options=("-Q", name), env=settings(**what))
    eventually(lambda: parked(book) + len(in_store(book)) >= 3)
    rows = all_have_run(book, "topic", 12)
    assert sorted(row.number for row in rows) == sorted([*range(8), *range(1, 8, 2)])
    assert not shared_slots(rows)
    per_worker = Counter(row.worker for row in rows)
    assert sorted(per_worker.values()) == [4, 8]


def test_a_late_message_comes_back_to_the_queue_it_came_from(fleet, book, broker, anywhere):
    what = {**anywhere, "topics": {"eu": "all.#", "us": "*.*"}, "grace": "10ms"}
    app = make_app(broker.url, **what)
    workers = [
        fleet.launch(MODULE, pool="threads", options=("-Q", name), env=settings(**what))
        for name in what["topics"]
    ]
    for worker in workers:
        worker.wait_ready()
    for number in range(4):
        takes_s = 0 if number else 3
        app.tasks["slow"].apply_async(("late", number, takes_s), queue="eu", routing_key="all.west")
    rows = all_have_run(book, "late", 8)
    assert sorted(row.number for row in rows) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert not shared_slots(rows)
    assert sorted(Counter(row.worker for row in rows).values()) == [4, 4]


def test_all_tasks_run_after_an_amqp_broker_drops_all_connections(fleet, book, broker):
    with closing(AmqpServer(is_own=True)) as amqp:
        what = {"broker": amqp.url, "store": broker.url}
        app = make_app(broker.url, **what)
        fleet.start(MODULE, concurrency=2, env=settings(**what))
        for number in range(30):
            app.tasks["steady"].delay("dropped", number)
        for count in (5, 10):
            eventually(lambda count=count: len(starts(book, "dropped")) >= count)
            amqp.drop()
        # A task that had started may start again: its acknowledgement was lost.
        eventually(lambda: {row.number for row in starts(book, "dropped")} == set(range(30)))
        assert not shared_slots(starts(book, "dropped"))
        eventually(lambda: not book.keys("*:parked*"))


@pytest.mark.parametrize("multiplier", [1, 16])
def test_a_worker_warns_where_waiting_tasks_keep_all_others_from_coming(
    fleet, book, broker, amqp, multiplier
):
    """RabbitMQ 4 does not raise the prefetch of a consumer. All tasks run nevertheless, at their rate."""
    what = {"broker": amqp.url, "store": broker.url, "conf": {"worker_prefetch_multiplier": multiplier}}
    app = make_app(broker.url, **what)
    worker = fleet.start(MODULE, pool="threads", concurrency=2, env=settings(**what))
    for number in range(30):
        app.tasks["brisk"].delay("crowded", number)
    rows = all_have_run(book, "crowded", 30)
    assert sorted(row.number for row in rows) == list(range(30))
    check_pace([row.due for row in rows], RATES["brisk"], tolerance="1us")
    warning = "all 2 messages that the worker may fetch at a time wait for their slots"
    assert worker.log.count(warning) == (multiplier == 1)


def test_a_broadcast_message_is_not_parked(fleet, book, broker, anywhere):
    what = {**anywhere, "broadcast": "everyone"}
    app = make_app(broker.url, **what)
    all_listen(fleet, book, what)
    for number in range(3):
        broadcast(app, "slow", "all", number)
    rows = all_have_run(book, "all", 6)
    assert sorted(row.number for row in rows) == [0, 0, 1, 1, 2, 2]
    assert not shared_slots(rows)
    assert not parked(book)
    assert not in_store(book)


def test_a_broadcast_message_waits_in_the_worker_where_it_missed_its_slot(fleet, book, broker, anywhere):
    """If one process sent a copy again, that copy would be lost."""
    what = {**anywhere, "broadcast": "everyone", "grace": "10ms"}
    app = make_app(broker.url, **what)
    all_listen(fleet, book, what, pool="threads")
    for number in range(4):
        broadcast(app, "slow", "late", number, 0 if number else 3)
    rows = all_have_run(book, "late", 8)
    assert sorted(row.number for row in rows) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert max(row.at - rows[0].at for row in rows if row.number) > 3
    assert not parked(book)
    assert not in_store(book)


def all_listen(fleet, book, what, **how):
    """Two workers that receive a copy each."""
    for worker in [fleet.launch(MODULE, env=settings(**what), **how) for _ in range(2)]:
        worker.wait_ready()
    if "broker" not in what:
        # Each worker listens twice: for tasks, and for control messages. A broadcast without a listener is
        # dropped.
        eventually(lambda: sum(client["psub"] != "0" for client in book.client_list()) == 4)


def broadcast(app, task, *args):
    fanout = Exchange("everyone", type="fanout")
    app.tasks[task].apply_async(args, exchange="everyone", routing_key="tasks", declare=[fanout])
