"""Parking: its scripts on a real Redis. A message is in exactly one place, whichever process dies when."""

import json
import time

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu import Consumer, Exchange, Producer, Queue

import shapekit.integrations.celery.parking
from shapekit.integrations.celery.parking import PREFIX, Parked, Parking, Taker, park_of

from ...redis_server import shared_server
from .fleet import eventually

BOOKS = ("books:index", "books:messages")
FAR_S = 1000.0


@pytest.fixture(scope="module")
def redis():
    with shared_server().client(decode_responses=True) as client:
        yield client


@pytest.fixture
def parking(redis):
    redis.flushdb()
    return parking_at(redis, "p")


def parking_at(redis, prefix):
    return Parking(lambda script, keys, arguments: redis.eval(script, len(keys), *keys, *arguments), prefix)


def deliver(redis, tag, text="text"):
    """Record a delivery in the books, as a broker does."""
    redis.zadd(BOOKS[0], {tag: time.time()})
    redis.hset(BOOKS[1], tag, text)


def record(text, queue="queue"):
    """The record of a message with this text."""
    return Parked(queue, f"list-{queue}", f"tag-{text}", json.dumps(text), '"exchange","key \\"1/\\u00e9\\""')


def taken(parking, taker, *queues, ahead=1.0, most=10):
    """The messages that are taken, and perhaps lost on their way."""
    messages = parking.take(taker, BOOKS, queues or ("queue",), ahead, most)
    return [json.loads(message.text)[0] for message in messages]


def newly_taken(parking, *queues, **how):
    """The messages that a new taker takes."""
    return taken(parking, Taker(), *queues, **how)


def nothing_is_parked(redis):
    return not redis.exists("p:parked", "p:parked:messages", "p:parked:claims")


def test_a_parked_message_leaves_the_books_in_the_same_step(redis):
    redis.flushdb()
    deliver(redis, "tag")
    deliver(redis, "another")
    steps = []

    def once(script, keys, arguments):
        assert not steps
        steps.append(script)
        return redis.eval(script, len(keys), *keys, *arguments)

    parking = Parking(once, "p")
    assert parking.park("one", FAR_S, ["queue", "text"], (*BOOKS, "tag"))
    assert redis.zrange(BOOKS[0], 0, -1) == redis.hkeys(BOOKS[1]) == ["another"]
    assert json.loads(redis.hget("p:parked:messages", "one")) == ["queue", "text"]


def test_a_copy_of_a_parked_message_is_struck_out(redis, parking):
    assert parking.park("one", 5.0, ["queue", "first"])
    due = redis.zscore("p:parked", "one")
    deliver(redis, "tag")
    assert not parking.park("one", FAR_S, ["queue", "second"], (*BOOKS, "tag"))
    assert not redis.exists(*BOOKS)
    assert redis.zscore("p:parked", "one") == due
    assert json.loads(redis.hget("p:parked:messages", "one")) == ["queue", "first"]


@pytest.fixture
def repeating(redis):
    """The parking of a broker whose client sends each request a second time, as no answer has come."""
    redis.flushdb()

    def evaluate(script, keys, arguments):
        for _ in range(2):
            answer = redis.eval(script, len(keys), *keys, *arguments)
        return answer

    return Parking(evaluate, "p")


def test_a_request_that_the_client_repeats_parks_and_takes_once(redis, repeating):
    deliver(redis, "tag")
    assert repeating.park("one", 0.0, record("m"), (*BOOKS, "tag"))
    taker = Taker()
    assert taken(repeating, taker) == ["m"]
    taker.has_heard = True
    assert taken(repeating, taker) == []
    assert redis.hkeys(BOOKS[1]) == ["tag-m"]


def test_a_copy_that_is_parked_before_the_claimed_one_is_dropped_stays(redis, parking):
    """Also if it is exactly what it was."""
    parking.park("one", 0.0, ["told", "body"])
    claims = parking.claim(1.0, 10)
    assert parking.park("one", 0.0, ["told", "body"])
    assert parking.drop(claims) == 0
    assert [claim.name for claim in parking.claim(1.0, 10)] == ["one"]


def test_a_message_is_due_by_the_clock_of_the_server(redis, parking):
    seconds, micros = redis.time()
    parking.park("one", 7.25, ["queue", "text"])
    after = redis.time()
    due = redis.zscore("p:parked", "one")
    assert seconds + micros / 1e6 + 7.25 <= due + 1e-6
    assert due <= after[0] + after[1] / 1e6 + 7.25 + 1e-6


@given(waits=st.permutations(range(-3, 5)), ahead=st.integers(-4, 5), most=st.integers(1, 9))
def test_the_first_due_messages_are_taken_in_order_and_are_on_the_books(redis, waits, ahead, most):
    redis.flushdb()
    parking = parking_at(redis, "p")
    for wait in waits:
        parking.park(f"n{wait}", wait * 10.0 + 5.0, record(f"m{wait}"))
    due = sorted(wait for wait in waits if wait <= ahead)[:most]
    before = time.time()
    # Messages whose slots have passed come last: some with slots to come may still be in time.
    in_order = [f"m{wait}" for wait in sorted(due, key=lambda wait: (wait < 0, wait))]
    assert newly_taken(parking, ahead=ahead * 10.0 + 10.0, most=most) == in_order
    assert {tag: json.loads(text) for tag, text in redis.hgetall(BOOKS[1]).items()} == {
        f"tag-m{wait}": [f"m{wait}", "exchange", 'key "1/é"'] for wait in due
    }
    index = dict(redis.zrange(BOOKS[0], 0, -1, withscores=True))
    assert index.keys() == {f"tag-m{wait}" for wait in due}
    assert all(before <= at <= time.time() for at in index.values())
    left = sorted(set(waits) - set(due))
    assert redis.zrange("p:parked", 0, -1) == [f"n{wait}" for wait in left]
    assert set(redis.hkeys("p:parked:messages")) == {f"n{wait}" for wait in left}


def test_only_messages_of_the_workers_own_queues_are_taken(redis, parking):
    parking.park("one", 0, record("1", "first"))
    parking.park("two", 0, record("2", "second"))
    parking.park("three", 0, record("3", "third"))
    assert newly_taken(parking, "second", "third", "fourth") == ["2", "3"]
    assert newly_taken(parking, "second") == []
    assert redis.hkeys("p:parked:messages") == ["one"]
    assert newly_taken(parking, "first") == ["1"]
    assert nothing_is_parked(redis)


def test_messages_of_queues_without_a_consumer_go_to_their_list_in_order(redis, parking):
    redis.lpush("list-other", "behind")
    for number in (2, 1, 3):
        parking.park(f"n{number}", number, record(f"m{number}", "other"))
    for number, due in ((1, -100), (2, -50), (3, -1)):
        redis.zadd("p:parked", {f"n{number}": time.time() + due})
    assert newly_taken(parking, "queue") == []
    # A broker takes from the right.
    assert redis.lrange("list-other", 0, -1)[::-1] == ['"m1"', '"m2"', "behind"]
    assert redis.hkeys("p:parked:messages") == redis.zrange("p:parked", 0, -1) == ["n3"]
    assert not redis.exists(*BOOKS)


def test_many_due_messages_of_other_queues_hide_none_of_the_workers_own(parking, monkeypatch):
    monkeypatch.setattr(shapekit.integrations.celery.parking, "MOST_SEEN", 10)
    for number in range(35):
        parking.park(f"other{number}", number / 100, record(f"o{number}", "other"))
    for number in range(25):
        parking.park(f"own{number}", 0.5 + number / 100, record(f"m{number}"))
    taker, found = Taker(), []

    def look():
        found.extend(taken(parking, taker, most=6))
        taker.has_heard = True

    for _ in range(3):
        look()
        assert not found
        assert parking.next_s == 0, "there are more to look at"
    for _ in range(20):
        look()
    assert found == [f"m{number}" for number in range(25)]
    # After the last the first follows again.
    parking.park("first", -1, record("first"))
    for _ in range(5):
        look()
    assert found[-1] == "first"


@pytest.fixture
def patient(monkeypatch):
    """Pauses that are longer than any stall of a machine."""
    monkeypatch.setattr(shapekit.integrations.celery.parking, "MOST_PAUSE_S", 40.0)


@pytest.mark.parametrize("others", [0, 10, 200])
def test_the_next_look_depends_on_the_workers_own_queues(parking, patient, others):
    """However many messages of other queues are due before: a look at those would find nothing."""
    for number in range(others):
        parking.park(f"other{number}", 60.0 + number / 100, record(f"o{number}", "other"))
    parking.park("far", 150.0, record("far"))
    assert newly_taken(parking, ahead=50.0) == []
    assert parking.next_s is None
    parking.park("own", 80.0, record("own"))
    assert newly_taken(parking, ahead=50.0) == []
    assert 70.0 < parking.next_s <= 80.0


def test_above_a_bound_messages_of_other_queues_may_hide_the_workers_own(parking, patient, monkeypatch):
    monkeypatch.setattr(shapekit.integrations.celery.parking, "MOST_SEEN", 10)
    for number in range(12):
        parking.park(f"other{number}", 60.0 + number, record(f"o{number}", "other"))
    parking.park("own", 80.0, record("own"))
    assert newly_taken(parking, ahead=50.0) == []
    assert 59.0 < parking.next_s <= 69.0


def test_a_name_may_be_parked_again_when_it_has_left(parking):
    parking.park("one", 0, record("1"))
    assert newly_taken(parking) == ["1"]
    assert parking.park("one", 0, record("2"))


def test_an_answer_that_was_lost_is_given_again(redis, parking):
    for number in range(4):
        parking.park(f"n{number}", 0, record(f"m{number}"))
    taker = Taker()
    assert taken(parking, taker, most=3) == ["m0", "m1", "m2"]
    # Of these messages one is delivered, one is acknowledged, and one is lost on its way.
    deliver(redis, "tag-m0", redis.hget(BOOKS[1], "tag-m0"))
    redis.zrem(BOOKS[0], "tag-m1")
    redis.hdel(BOOKS[1], "tag-m1")
    assert taken(parking, taker) == ["m2"]
    assert taken(parking, taker) == ["m2"]
    assert newly_taken(parking) == ["m3"], "others are not told of it"
    taker.has_heard = True
    assert taken(parking, taker) == []
    assert taken(parking, taker) == [], "nothing was in that answer"


def test_after_an_answer_that_arrived_whole_the_next_messages_are_taken(redis, parking):
    taker = Taker()
    for number in range(2):
        parking.park(f"n{number}", 0, record(f"m{number}"))
        assert taken(parking, taker) == [f"m{number}"]
        deliver(redis, f"tag-m{number}")


def test_a_claimed_message_is_not_claimed_again_until_its_lease_ends(redis, parking):
    parking.park("one", 0, ["told", "body"])
    parking.park("two", FAR_S, ["told", "body"])
    (first,) = parking.claim(1, 10)
    assert first[:3] == ("one", ["told", "body"], False)
    assert parking.claim(1, 10) == []
    # The process that claimed it stops here, before or after it published the message.
    (second,) = parking.claim(60, 10)
    assert second[:3] == ("one", ["told", "body"], True)
    assert not parking.drop([first])
    assert parking.drop([second])
    assert not parking.drop([second])
    assert parking.claim(60, 10) == []
    assert redis.zrange("p:parked", 0, -1) == redis.hkeys("p:parked:messages") == ["two"]
    assert not redis.exists("p:parked:claims")


def test_a_message_that_is_parked_again_before_it_is_dropped_stays(redis, parking):
    """Another worker may receive it from the broker before the process that published it goes on."""
    parking.park("one", 0, ["told", "body"])
    (first,) = parking.claim(1, 10)
    assert parking.park("one", 0, ["again", "body"])
    assert not parking.park("one", FAR_S, ["a duplicate", "body"])
    assert not parking.drop([first])
    (second,) = parking.claim(1, 10)
    assert second[:3] == ("one", ["again", "body"], False)
    assert not parking.drop([first])
    assert parking.drop([second])
    assert not redis.keys("p:parked*")


def test_a_lease_ends_by_itself(parking):
    parking.park("one", 0, ["told", "body"])
    assert len(parking.claim(0, 10, lease_s=0.05)) == 1
    (claimed,) = eventually(lambda: parking.claim(0, 10), 5.0)
    assert claimed[:3] == ("one", ["told", "body"], True)


def test_messages_of_a_lost_answer_are_claimed_again_at_once(redis, parking):
    def lose(script, keys, arguments):
        redis.eval(script, len(keys), *keys, *arguments)
        raise ConnectionError

    for name in ("one", "two"):
        parking.park(name, 0, ["told", "body"])
    assert [claim.name for claim in parking_at(redis, "p").claim(1, 1)] == ["one"]
    parking._evaluate, evaluate = lose, parking._evaluate
    for _ in range(2):
        with pytest.raises(ConnectionError):
            parking.claim(1, 10)
    parking._evaluate = evaluate
    claimed = parking.claim(1, 10)
    # As far as the server knows, the answer may have arrived.
    assert [(claim.name, claim.again) for claim in claimed] == [("two", True)]
    assert parking.claim(1, 10) == []
    assert parking.drop(claimed) == 1


def test_one_queue_may_be_claimed_earlier_than_the_others(parking):
    for name, wait_s in (("one@slow", 5), ("two@other", 6), ("three@slow", 7), ("four@slow", 30)):
        parking.park(name, wait_s, ["told", "body"])
    claimed = parking.claim(10, 2, ending="@slow")
    assert [claim.name for claim in claimed] == ["one@slow", "three@slow"]
    assert [claim.ahead_s for claim in claimed] == pytest.approx([5, 7], abs=2)
    assert [claim.name for claim in parking.claim(10, 2)] == ["two@other"]


def test_a_bounded_number_of_messages_is_claimed_in_order(parking):
    for wait in (3, 1, 2):
        parking.park(f"n{wait}", wait, ["told", "body"])
    assert [claim.name for claim in parking.claim(10, 2)] == ["n1", "n2"]
    assert [claim.name for claim in parking.claim(10, 2)] == ["n3"]


def test_late_messages_are_claimed_after_the_others(parking):
    for wait in (-30, 9, -20, 10):
        parking.park(f"n{wait}", wait, ["told", "body"])
    assert [claim.name for claim in parking.claim(10, 3)] == ["n9", "n-30", "n-20"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(0, 3)),
        st.tuples(st.just("park"), st.integers(0, 3)),
        st.tuples(st.just("restore"), st.integers(0, 3)),
        st.just(("take", 0)),
        st.just(("hear", 0)),
    ),
    max_size=25,
)


@given(steps=STEPS)
def test_no_message_is_lost_or_doubled_in_any_order_of_events(redis, steps):
    """A broker's queue, its books, and the park: every message is in one of them; a copy is struck out."""
    redis.flushdb()
    parking = parking_at(redis, "p")
    for number in range(4):
        redis.lpush("queue", f"m{number}")
    taker = Taker()
    for step, number in steps:
        text = f"m{number}"
        if step == "deliver" and redis.lrem("queue", 1, text):
            deliver(redis, f"tag-{text}", json.dumps([text]))
        elif step == "park" and redis.hexists(BOOKS[1], f"tag-{text}"):
            parking.park(text, 0, record(text), (*BOOKS, f"tag-{text}"))
        elif step == "restore" and redis.hdel(BOOKS[1], f"tag-{text}"):
            redis.zrem(BOOKS[0], f"tag-{text}")
            redis.rpush("queue", text)
        elif step == "take":
            on_their_way = taken(parking, taker, most=3)
            assert {f"tag-{text}" for text in on_their_way} <= set(redis.hkeys(BOOKS[1]))
        elif step == "hear":
            taker.has_heard = True
        places = [
            *redis.lrange("queue", 0, -1),
            *(json.loads(text)[0] for text in redis.hvals(BOOKS[1])),
            *(json.loads(json.loads(text)[3]) for text in redis.hvals("p:parked:messages")),
        ]
        assert sorted(places) == ["m0", "m1", "m2", "m3"]
        assert sorted(redis.hkeys("p:parked:messages")) == sorted(redis.zrange("p:parked", 0, -1))


def test_two_parks_on_one_server_do_not_meet(redis, parking):
    other = parking_at(redis, "q")
    parking.park("one", 0, record("1"))
    assert newly_taken(other) == []
    assert other.park("one", 0, record("2"))


def test_a_group_whose_wait_is_shortened_comes_back_earlier(parking):
    for number in range(3):
        parking.park(f"group\n{number}", 100.0 + number, record(f"m{number}"))
    parking.park("groups\n3", 100.0, record("m3"))
    parking.park("other\ngroup\n4", 100.0, record("m4"))
    assert parking.shorten("group", 90.0) == 0
    assert parking.shorten("group", 90.1) == 0
    assert parking.shorten("group", 0.0) == 3
    assert parking.shorten("group", 0.0) == 0
    assert len(newly_taken(parking, ahead=10.2)) == 1
    assert len(newly_taken(parking, ahead=11.2)) == 1
    assert len(newly_taken(parking, ahead=99.0)) == 1
    assert len(newly_taken(parking, ahead=101.0)) == 2


def test_an_acknowledgement_after_the_connection_was_lost_is_logged_and_raises_nothing(redis, caplog):
    app = Celery("late", broker=shared_server().url, set_as_current=False)
    with app.connection_for_write() as connection:
        channel = connection.channel()
        park_of(app, Consumer(channel), Taker())
        queue = Queue("late-queue", channel=channel)
        queue.declare()
        Producer(channel).publish("late", routing_key="late-queue")
        message = queue.get()
        # This is how kombu leaves a channel whose connection was lost.
        channel.close()
        channel._pool = None
        message.ack()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "shapekit.celery"]
    assert "delivered again" in line


def test_a_message_that_comes_back_has_a_new_tag_so_that_its_old_delivery_restores_nothing(redis):
    app = Celery("tags", broker=shared_server().url, set_as_current=False)
    with app.connection_for_write() as connection:
        channel = connection.channel()
        park = park_of(app, Consumer(channel), Taker())
        queue, got = Queue("tags-queue", channel=channel), []
        with connection.Consumer(queue, channel=channel, on_message=got.append):
            Producer(channel).publish("told", routing_key="tags-queue")
            connection.drain_events(timeout=10)
            assert park.put("name", 0.0, got[0])
            assert park.bring_back(1.0, 10, {}) == 1
            first, second = got
            assert first.delivery_tag != second.delivery_tag
            channel.qos.restore_by_tag(first.delivery_tag)
            assert not queue.get()
            assert second.payload == "told"
            second.ack()
        assert not redis.hexists("unacked", second.delivery_tag)


def test_a_change_brings_a_group_back_once_and_its_report_is_forgotten(redis, parking):
    for name in ("one\na", "one\nb", "other\nc"):
        parking.park(name, FAR_S, record(name))
    assert [parking.hasten("one", version) for version in ("1", "1", "1 again", "1")] == [2, 0, 0, 0]
    first, second, other = (redis.zscore("p:parked", name) for name in ("one\na", "one\nb", "other\nc"))
    assert first < second < time.time() < other - FAR_S / 2
    parking.park("one\nd", FAR_S, record("d"))
    assert [parking.hasten("one", version) for version in ("1", "2")] == [0, 1]
    reports = redis.keys("p:parked:changed:*")
    assert [redis.ttl(key) > 0 for key in reports] == [True]


def test_copies_in_several_queues_with_one_routing_key_are_parked_and_come_back_separately(redis):
    redis.flushdb()
    app = Celery("copies", broker=shared_server().url, set_as_current=False)
    with app.connection_for_write() as connection:
        channel, got = connection.channel(), []
        park = park_of(app, Consumer(channel), Taker())
        exchange = Exchange("shared", type="direct")
        queues = [Queue(name, exchange, "key", channel=channel) for name in ("copies-one", "copies-two")]
        with connection.Consumer(queues, channel=channel, on_message=got.append):
            Producer(channel).publish("told", exchange=exchange, routing_key="key", declare=queues)
            for _ in queues:
                connection.drain_events(timeout=10)
                assert park.put("name", 0.0, got[-1])
            assert sorted(redis.hkeys(f"{PREFIX}:parked:messages")) == ["name@copies-one", "name@copies-two"]
            assert park.bring_back(1.0, 10, {}) == 2
            assert sorted(message.delivery_info["queue"] for message in got[2:]) == [
                "copies-one",
                "copies-two",
            ]
            for message in got[2:]:
                message.ack()
