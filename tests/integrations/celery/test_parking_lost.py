"""A parked message that is gone or unreadable holds up no other message, and the log reports it once."""

import base64
import json
import logging
import time
from contextlib import closing

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu import Consumer, Producer, Queue
from kombu.transport import virtual
from kombu.transport.redis import QoS
from redis.exceptions import ConnectionError as GoneError

from shapekit.integrations.celery.parking import Parked, Parking, Taker, park_of

from ...amqp_server import AmqpServer
from ...redis_server import shared_server

BOOKS = ("books:index", "books:messages")
COUNT = 6
GONE = object()
DAMAGES = [
    *(GONE, "", "{", "7", "null", '"text"', "{}", "[]", '["queue"]', "[1,2,3,4,5]", "[" * 2000),
    json.dumps(["queue", None, None, None, None]),
    json.dumps([["queue"], {}, "tag", "raw", "route"]),
]
"""What may stand in place of a record."""
DAMAGED = st.dictionaries(st.integers(0, COUNT - 1), st.sampled_from(DAMAGES))


@pytest.fixture(scope="module")
def redis():
    with shared_server().client(decode_responses=True) as client:
        yield client


def parking_at(redis, prefix):
    return Parking(lambda script, keys, arguments: redis.eval(script, len(keys), *keys, *arguments), prefix)


def damage(redis, damaged, messages="p:parked:messages"):
    for number, how in damaged.items():
        if how is GONE:
            redis.hdel(messages, f"n{number}")
        else:
            redis.hset(messages, f"n{number}", how)


def take(parking):
    return [message.tag for message in parking.take(Taker(), BOOKS, ["queue"], 1.0, 100)]


def claim(parking):
    claimed = parking.claim(1.0, 100)
    for one in claimed:
        assert parking.drop([one])
    return [one.name for one in claimed]


def sweep(parking):
    """The messages of queues without a consumer."""
    return parking.take(Taker(), BOOKS, ["another"], 1.0, 100)


class Lines(logging.Handler):
    """The lines that are logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        logging.getLogger("shapekit.celery").addHandler(self)
        return self.lines

    def __exit__(self, *_):
        logging.getLogger("shapekit.celery").removeHandler(self)


@pytest.mark.parametrize("way", [take, claim, sweep])
@given(damaged=DAMAGED)
def test_all_other_messages_come_back_in_order_and_each_loss_is_logged_once(redis, way, damaged):
    redis.flushdb()
    parking = parking_at(redis, "p")
    for number in range(COUNT):
        name = f"n{number}"
        parking.park(
            name, 0, ["told", "body"] if way is claim else Parked("queue", "list", name, '"m"', "1,2")
        )
        redis.zadd("p:parked", {name: time.time() - 1000 + number})
    damage(redis, damaged)
    with Lines() as lines:
        found = [] if (got := way(parking)) is None else got
        assert not way(parking)
    whole = [f"n{number}" for number in range(COUNT) if number not in damaged]
    if way is sweep:
        assert redis.llen("list") == len(whole)
    else:
        assert found == whole
    missing = [number for number, how in damaged.items() if how is GONE]
    kept = {f"n{number}": how for number, how in damaged.items() if how is not GONE}
    assert sum("is lost" in line for line in lines) == len(missing)
    assert sum("is kept in p:parked:unreadable" in line for line in lines) == len(kept)
    assert len(lines) == len(damaged)
    assert redis.hgetall("p:parked:unreadable") == kept
    assert not redis.exists("p:parked", "p:parked:messages", "p:parked:claims")


@pytest.mark.parametrize("way", [take, claim, sweep])
@pytest.mark.parametrize("how", DAMAGES, ids=lambda how: "gone" if how is GONE else how[:20])
def test_a_damaged_message_that_is_not_due_yet_holds_up_no_other(redis, way, how):
    redis.flushdb()
    parking = parking_at(redis, "p")
    record = ["told", "body"] if way is claim else Parked("queue", "list", "n0", '"m"', "1,2")
    for number, wait in enumerate((0.0, 1000.0)):
        parking.park(f"n{number}", wait, record)
    damage(redis, {1: how})
    assert way(parking) == ([] if way is sweep else ["n0"])


def test_a_taken_message_that_is_gone_from_the_books_is_not_given_again(redis):
    redis.flushdb()
    parking = parking_at(redis, "p")
    for number in range(3):
        parking.park(f"n{number}", 0, Parked("queue", "list", f"n{number}", '"m"', "1,2"))
    taker = Taker()
    assert len(parking.take(taker, BOOKS, ["queue"], 1.0, 100)) == 3
    redis.hdel(BOOKS[1], "n1")
    assert [message.tag for message in parking.take(taker, BOOKS, ["queue"], 1.0, 100)] == ["n0", "n2"]


def test_a_message_whose_entry_is_gone_gets_one_when_it_comes_again(redis):
    redis.flushdb()
    parking = parking_at(redis, "p")
    parking.park("one", 0, ["told", "body"])
    redis.delete("p:parked")
    assert not parking.park("one", 0, ["told", "another body"])
    assert [one.record for one in parking.claim(1.0, 10)] == [["told", "body"]]


# kombu can read the record, but it is no message


def app_with(broker):
    app = Celery("lost", broker=broker, set_as_current=False)
    app.conf.shapekit_store = shared_server().url
    return app


def rewritten(redis, name, place, value):
    (key,) = redis.keys("*:parked:messages")
    record = json.loads(redis.hget(key, name))
    record[place] = value
    redis.hset(key, name, json.dumps(record))


@pytest.mark.parametrize("is_anew", [True, False])
def test_a_message_whose_delivery_was_interrupted_is_delivered_again(redis, monkeypatch, is_anew):
    """Otherwise it would come back only after the visibility timeout."""
    redis.flushdb()
    append, lost = QoS.append, []

    def losing(qos, message, tag):
        if len(got) == COUNT and not lost:
            # The broker has recorded it, but the answer does not come.
            lost.append(tag)
            monkeypatch.setattr(virtual.QoS, "append", lambda *_: fail())
        append(qos, message, tag)

    def fail():
        monkeypatch.setattr(virtual.QoS, "append", append_virtual)
        raise GoneError

    append_virtual = virtual.QoS.append
    monkeypatch.setattr(QoS, "append", losing)
    with app_with(shared_server().url).connection_for_write() as connection:
        channel = connection.channel()
        app, consumer, taker = app_with(shared_server().url), Consumer(channel), Taker()
        park = park_of(app, consumer, taker)
        queue, got = Queue("lost-queue", channel=channel), []
        with connection.Consumer(queue, channel=channel, on_message=got.append):
            for number in range(COUNT):
                Producer(channel).publish(number, routing_key="lost-queue")
                connection.drain_events(timeout=10)
                assert park.put(f"n{number}", 0.0, got[number])
            with pytest.raises(GoneError):
                park.bring_back(1.0, 10, {})
            if is_anew:
                park = park_of(app, consumer, taker)  # the worker has connected again
            assert park.bring_back(1.0, 10, {}) == COUNT - 1
            connection.drain_events(timeout=10)
            assert [message.payload for message in got[COUNT:]] == [*range(1, COUNT), 0]
            assert got[-1].headers["redelivered"]
            for message in got[COUNT:]:
                message.ack()


@pytest.mark.parametrize("raw", ["{", "7", "null", "[]", "{}", '{"properties": 7}', '{"properties": {}}'])
def test_a_record_that_is_no_message_of_the_broker_is_set_aside(redis, raw, caplog):
    redis.flushdb()
    with app_with(shared_server().url).connection_for_write() as connection:
        channel = connection.channel()
        app, consumer, taker = app_with(shared_server().url), Consumer(channel), Taker()
        park = park_of(app, consumer, taker)
        queue, got = Queue("lost-queue", channel=channel), []
        with connection.Consumer(queue, channel=channel, on_message=got.append):
            for number in range(3):
                Producer(channel).publish(number, routing_key="lost-queue")
                connection.drain_events(timeout=10)
                assert park.put(f"n{number}", 0.0, got[number])
            rewritten(redis, "n1@lost-queue", 3, raw)
            assert park.bring_back(1.0, 10, {}) == 3
            assert [message.payload for message in got[3:]] == [0, 2]
            assert redis.hlen("unacked") == redis.zcard("unacked_index") == 2
            for message in got[3:]:
                message.ack()
            assert park.bring_back(1.0, 10, {}) == 0
    (kept,) = redis.hvals("{shapekit:celery}:parked:unreadable")
    assert raw in kept
    assert [record.levelname for record in caplog.records if record.name == "shapekit.celery"] == ["ERROR"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "{"),
        (0, "7"),
        (0, "null"),
        (0, '{"headers": {}, "expiration": "soon"}'),
        (1, "=a"),
        (1, "no base64!"),
        (1, "é"),
    ],
)
def test_a_message_that_cannot_be_published_is_set_aside(redis, place, value, caplog):
    redis.flushdb()
    app = app_with("memory://")
    with app.connection_for_write() as connection:
        park = park_of(app, Consumer(connection.default_channel), Taker())
        options = {"exchange": "", "routing_key": "lost", "headers": {}}
        queue = Queue("lost", channel=connection.default_channel)
        queue.declare()
        for number in range(3):
            body = base64.b64encode(b"%d" % number).decode()
            park.park(f"n{number}", 0, [json.dumps(options), body])
        rewritten(redis, "n1", place, value)
        assert park.bring_back(1.0, 10, {}) == 3
        assert [queue.get(no_ack=True).body for _ in range(2)] == [b"0", b"2"]
        assert queue.get() is None
    (key,) = redis.keys("*:parked:unreadable")
    assert list(redis.hgetall(key)) == ["n1"]
    assert not redis.keys("*:parked")
    assert not redis.keys("*:parked:claims")
    assert [record.levelname for record in caplog.records if record.name == "shapekit.celery"] == ["ERROR"]


def test_a_message_that_the_broker_never_got_is_published_again(redis):
    """Where the message was sent, only the end of the connection shows that it was not received."""
    redis.flushdb()
    with closing(AmqpServer(is_own=True)) as server:
        app = app_with(server.url)
        with app.connection_for_write() as connection:
            park, got = park_of(app, Consumer(connection), Taker()), []
            options = json.dumps({"exchange": "", "routing_key": "lost", "headers": {}})
            with connection.Consumer([Queue("lost")], on_message=got.append, no_ack=True):
                for name in ("one", "two"):
                    park.park(name, 0, [options, base64.b64encode(name.encode()).decode()])
                server.lose(1)
                assert park.bring_back(1.0, 10, {}) == 2
                while len(got) < 2:
                    connection.drain_events(timeout=10)
            assert sorted(message.body for message in got) == [b"one", b"two"]
            park.park("other", 0, [options, ""])
            server.lose(9)
            with pytest.raises(park._gone):
                park.bring_back(1.0, 10, {})
            park.close()
    (key,) = redis.keys("*:parked:messages")
    assert redis.hkeys(key) == ["other"]


def test_a_message_published_before_the_broker_was_gone_is_not_published_again(redis, monkeypatch):
    redis.flushdb()
    app, tries = app_with("memory://"), []
    with app.connection_for_write() as connection:
        park = park_of(app, Consumer(connection), Taker())
        for number in range(3):
            park.park(f"n{number}", number / 1000, [json.dumps({"headers": {}, "priority": number}), ""])

        def publish(*_, priority, **__):
            tries.append(priority)
            if priority == 1:
                raise connection.recoverable_connection_errors[0]

        monkeypatch.setattr(app.amqp.Producer, "publish", publish)
        with pytest.raises(park._gone):
            park.bring_back(1.0, 10, {})
    assert tries == [0, 1, 1]
    (key,) = redis.keys("*:parked:messages")
    assert sorted(redis.hkeys(key)) == ["n1", "n2"]


def test_where_the_broker_is_gone_nothing_is_set_aside(redis, monkeypatch):
    redis.flushdb()
    app = app_with("memory://")
    with app.connection_for_write() as connection:
        park = park_of(app, Consumer(connection.default_channel), Taker())
        park.park("one", 0, ['{"headers": {}}', ""])

        def publish(*_, **__):
            raise GoneError("gone")

        monkeypatch.setattr(app.amqp.Producer, "publish", publish)
        with pytest.raises(GoneError):
            park.bring_back(1.0, 10, {})
    assert not redis.keys("*:parked:unreadable")
    assert len(redis.keys("*:parked:messages")) == 1
