"""Slips: a header that a message carries is read back; one that shapekit did not write counts as none."""

import time

import pytest
from celery import Celery
from celery.exceptions import Ignore
from kombu import Exchange, Queue

from shapekit import AccountExhaustedError, Decision, MemoryStore, Policy, QueueFullError, QuotaExhaustedError
from shapekit.integrations.celery import SLOT_HEADER, ShapedTask, SlotHeader

HEADERS = {"id": "4711", "retries": 2}


def travelling(**more):
    return SlotHeader.travelling({**HEADERS, **more}, Policy("10/s", name="slips").shaper.reserve())


def test_a_slot_header_reads_back_as_written():
    slot_header = travelling(redelivered=True)._replace(slot=12.5)
    read = SlotHeader.of({**HEADERS, SLOT_HEADER: slot_header.text()})
    assert (read.attempt, read.slot, read.was_redelivered) == ("4711:2:0", 12.5, True)
    assert read.text() == slot_header.text()


DENIED = Decision(False, 10, 10, 0, 0, 1_000_000)


@pytest.mark.parametrize(
    "refused",
    [
        QueueFullError(DENIED, "key", 2.0, 1.0),
        QuotaExhaustedError(DENIED, "key"),
        AccountExhaustedError(DENIED, "key"),
    ],
    ids=lambda refused: refused.code,
)
def test_a_refusal_is_raised_as_it_was(refused):
    read = SlotHeader.of({**HEADERS, SLOT_HEADER: SlotHeader.refused(HEADERS, refused).text()})
    assert type(read.error) is type(refused)
    assert str(read.error) == str(refused)
    assert travelling().error is None


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "5", "null", "{}", '["4711:2:0"', "[1, 2, 3, 4, 5, 6]", 5, b"\xff"]
)
def test_a_malformed_header_reads_as_none(text):
    assert SlotHeader.of({**HEADERS, SLOT_HEADER: text}) is None


def test_the_header_of_another_attempt_reads_as_none():
    """A retry has the headers of the attempt before it."""
    slot_header = travelling()
    assert SlotHeader.of({**HEADERS, SLOT_HEADER: slot_header.text()})
    assert SlotHeader.of({**HEADERS, "retries": 3, SLOT_HEADER: slot_header.text()}) is None
    assert SlotHeader.of({**HEADERS, "replaced_task_nesting": 1, SLOT_HEADER: slot_header.text()}) is None
    assert SlotHeader.of(HEADERS) is None


def test_a_task_whose_slot_was_taken_by_its_worker_has_a_whole_admission():
    """The task reads the decision and settles, and its slot belongs to the policy's own shaper."""
    app = Celery("slips", broker="memory://", set_as_current=False)
    policy = Policy("10/s", burst=5, name="slips", store=MemoryStore())

    @app.task(base=ShapedTask, bind=True, shape=policy, shared=False)
    def work(self):
        admission = self.shaped.admission
        return (
            admission.decision.allowed,
            admission.settle(3),
            admission.reservation.cost,
            admission.reservation.core,
        )

    slot = policy.shaper.reserve()
    slot_header = SlotHeader.travelling(HEADERS, slot)._replace(slot=time.monotonic())
    work.push_request(**HEADERS, **{SLOT_HEADER: slot_header.text()}, called_directly=False)
    try:
        assert work.run() == (True, True, 3, policy.shaper.core)
    finally:
        work.pop_request()
    assert policy.shaper.reserve(cost=2).delay == 0
    assert policy.shaper.reserve().delay > 0


def test_a_task_that_misses_its_slot_while_the_store_is_gone_comes_back_with_it():
    """Its worker, which waits for the store, then gives the slot back and takes another."""
    app = Celery("gone", broker="memory://", set_as_current=False)
    app.conf.task_default_queue = "gone"
    shape = {"rate": "10/s", "name": "gone", "store": "redis://127.0.0.1:1"}

    @app.task(base=ShapedTask, name="work", shape=shape, shared=False)
    def work():
        """Never run."""

    slot = Policy("10/s", name="gone").shaper.reserve()
    slot_header = SlotHeader.travelling(HEADERS, slot)
    missed = {SLOT_HEADER: slot_header._replace(slot=time.monotonic() - 60.0).text()}
    work.push_request(**HEADERS, **missed, headers=missed, called_directly=False)
    try:
        with pytest.raises(Ignore):
            work.run()
    finally:
        work.pop_request()
    with app.connection_for_read() as connection, connection.SimpleQueue("gone") as queue:
        message = queue.get_nowait()
        assert (message.headers["id"], message.headers["retries"]) == (HEADERS["id"], HEADERS["retries"])
        assert SlotHeader.of(message.headers).text() == slot_header.text()


def test_a_task_interrupted_while_it_confirms_a_missed_slot_gives_that_slot_back(monkeypatch):
    app = Celery("interrupted", broker="memory://", set_as_current=False)
    policy = Policy("1/h", name="interrupted", store=MemoryStore())

    @app.task(base=ShapedTask, shape=policy, shared=False)
    def work():
        """Never run."""

    async def coming(*_):
        raise KeyboardInterrupt

    slot_header = SlotHeader.travelling(HEADERS, policy.shaper.reserve())
    assert policy.shaper.forecast().first_in > 3_000
    missed = {SLOT_HEADER: slot_header._replace(slot=time.monotonic() - 3_000.0).text()}
    monkeypatch.setattr(type(policy.shaper.core), "coming", coming)
    work.push_request(**HEADERS, **missed, called_directly=False)
    try:
        with pytest.raises(KeyboardInterrupt):
            work.run()
    finally:
        work.pop_request()
    assert policy.shaper.forecast().first_in == 0


def test_a_task_comes_back_to_its_own_queue_alone():
    """Other queues may have the same routing key, and their own copies."""
    app = Celery("several", broker="memory://", set_as_current=False)
    shape = {"rate": "10/s", "name": "several", "store": "redis://127.0.0.1:1"}

    @app.task(base=ShapedTask, name="work", shape=shape, shared=False)
    def work():
        """Never run."""

    exchange = Exchange("several", type="topic")
    slot_header = SlotHeader.travelling(HEADERS, Policy("10/s", name="several").shaper.reserve())
    missed = {SLOT_HEADER: slot_header._replace(slot=time.monotonic() - 60.0, queue="several-2").text()}
    way = {"exchange": "several", "routing_key": "a.b"}
    with app.connection_for_read() as connection:
        queues = [
            Queue(f"several-{number}", exchange, key, channel=connection.default_channel)
            for number, key in enumerate(("a.c", "a.*", "a.b", "#"))
        ]
        for queue in queues:
            queue.declare()
        work.push_request(**HEADERS, **missed, delivery_info=way, called_directly=False)
        try:
            with pytest.raises(Ignore):
                work.run()
        finally:
            work.pop_request()
        came = [queue.get(no_ack=True) for queue in queues]
        assert [message is not None for message in came] == [False, False, True, False]
        assert SlotHeader.of(came[2].headers).text() == slot_header.text()
