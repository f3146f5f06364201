"""Deliveries: a message that comes too late, or whose task never runs, gives its slot back."""

from types import SimpleNamespace

import pytest
from celery.canvas import Signature
from kombu.exceptions import OperationalError

from shapekit._runtime.drivers import run
from shapekit.events import Cancelled
from shapekit.integrations import celery
from shapekit.integrations.celery import SLOT_HEADER, SlotHeader
from shapekit.integrations.celery.worker import Batches, Delivery

from .eager import Eager


class Worker:
    """Delivers messages of a task with a quota, in virtual time."""

    def __init__(self, clock):
        self.clock = clock
        self.shaped = Eager(clock).shaped(lambda: None, {"rate": "10/s", "quota": "9/day"}).shaped
        self.batches = Batches(self.shaped, lambda: None)

    def delivered(self, reservation=None, body=b"[]", info=()):
        headers = {"id": "4711", "retries": 0}
        if reservation is not None:
            headers[SLOT_HEADER] = SlotHeader.travelling(headers, reservation).text()
        message = SimpleNamespace(headers=headers, delivery_info=dict(info), payload=((), {}, {}), body=body)
        return Delivery(self.batches, message, None, None)

    @property
    def used(self):
        [quota] = self.shaped.policy.quotas()
        return quota.used


@pytest.fixture
def worker(clock):
    return Worker(clock)


@pytest.fixture(params=["taken here", "brought"])
def delivery(request, worker):
    """A message whose slot comes in half a second."""
    worker.shaped.policy.shaper.hold(0.5)
    delivery = worker.delivered()
    assert delivery.remaining() == pytest.approx(0.5)
    assert worker.used == 1
    return delivery if request.param == "taken here" else worker.delivered(delivery.reservation)


@pytest.mark.parametrize("received", [1, 2])
def test_a_message_that_sqs_delivers_again_takes_another_slot(worker, received):
    """The worker that had the message before may have used the slot that it carries."""
    slot = worker.shaped.policy.shaper.reserve()
    info = {"sqs_message": {"Attributes": {"ApproximateReceiveCount": str(received)}}}
    assert worker.delivered(slot, info=info).remaining() == pytest.approx(0 if received == 1 else 0.1)


def test_a_message_that_comes_late_is_counted_once(worker, delivery):
    worker.clock.advance(0.5 + worker.shaped.grace_s)
    assert delivery.remaining() == pytest.approx(-worker.shaped.grace_s)
    worker.clock.advance(0.001)
    assert delivery.remaining() >= 0
    assert worker.used == 1


@pytest.mark.parametrize("passed_s", [0, 0.5, 0.52, 5])
def test_a_message_whose_task_never_runs_is_not_counted(worker, delivery, passed_s):
    worker.clock.advance(passed_s)
    events = []
    with worker.shaped.policy.listen(events.append):
        for _ in range(2):
            assert delivery.give_back()
            assert worker.used == 0
    assert [type(event) for event in events] == [Cancelled] * 2
    assert events[0].returned


class Names:
    """A park that keeps only the names of messages."""

    def __init__(self):
        self.names = set()

    def put(self, name, wait_s, message):
        is_new = name not in self.names
        self.names.add(name)
        return is_new


@pytest.mark.parametrize("is_early", [True, False])
def test_one_message_is_parked_once_and_another_of_the_same_id_as_well(worker, is_early):
    park, others = Names(), SimpleNamespace(note=lambda *_, **__: None)
    for body in (b"one", b"one", "another", "another"):
        delivery = worker.delivered(body=body)
        if not is_early:
            delivery.remaining()
        delivery.park(park, others, others, 1.0)
    assert len(park.names) == 2
    assert worker.used == (0 if is_early else 2)


@pytest.mark.parametrize("is_parked", [True, False])
def test_a_message_that_may_be_parked_leaves_its_slot_to_the_parked_copy(worker, delivery, is_parked):
    """The acknowledgement, or the answer of the server with the parked messages, was lost."""

    class Lost(Names):
        def put(self, name, wait_s, message):
            if is_parked:
                super().put(name, wait_s, message)
            raise OSError

    others = SimpleNamespace(note=lambda *_, **__: None)
    names = Lost()
    with pytest.raises(OSError):
        delivery.park(names, others, others, 0.5)
    assert delivery.give_back()
    assert worker.used == 1
    # It tries again with another slot, and needs none if the copy is there.
    assert delivery.remaining() == pytest.approx(0.6)
    again = Names()
    again.names = names.names
    delivery.park(again, others, others, 0.6)
    assert worker.used == (1 if is_parked else 2)


def test_in_the_pool_a_slot_that_moved_ahead_is_confirmed_again_when_it_comes(clock, monkeypatch):
    """Late calls of other workers move the line, also while a task waits."""
    shaped = Eager(clock).shaped(lambda: None, {"rate": "20/s"}).shaped
    shaper = shaped.policy.shaper
    *others, own, _ = [shaper.reserve() for _ in range(12)]
    clock.advance(own.delay - 0.01)
    late = iter(others)

    def late_call():
        coming = run(shaper.core.coming, next(late), 0.0)
        assert coming.has_moved
        return coming

    slept = []

    def sleep(length_s):
        slept.append(length_s)
        if len(slept) == 1:
            late_call()
        clock.advance(length_s)

    monkeypatch.setattr(celery, "time", SimpleNamespace(sleep=sleep))
    for _ in range(2):
        late_call()
    reservation, late_s = shaped._caught_up(shaped.admission_of({}, (), {}), own)
    assert len(slept) > 1
    assert late_s >= 0
    assert clock.now() == pytest.approx(reservation.departs_at + late_s)
    # The next of the other calls leaves a whole slot later.
    assert late_call().reservation.departs_at >= reservation.departs_at + 0.05 - 1e-6


def test_a_task_that_is_interrupted_while_it_waits_in_the_pool_gives_its_slot_back(worker, monkeypatch):
    def sleep(length_s):
        assert worker.used == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(celery, "time", SimpleNamespace(sleep=sleep))
    shaper = worker.shaped.policy.shaper
    shaper.hold(0.3)
    with pytest.raises(KeyboardInterrupt):
        worker.shaped._caught_up(worker.shaped.admission_of({}, (), {}), shaper.reserve())
    assert worker.used == 0


@pytest.mark.parametrize("is_sent", [True, False, None])
def test_a_late_task_that_cannot_be_sent_again_waits_in_the_pool(worker, monkeypatch, is_sent):
    """With another slot, if the message may have been sent with its own; None: the sending is interrupted."""
    shaper, slept = worker.shaped.policy.shaper, []

    def apply_async(again, **options):
        text = again.options["headers"][SLOT_HEADER]
        headers = options["shapekit_sending"].headers = {SLOT_HEADER: text}
        if is_sent is None:
            raise KeyboardInterrupt
        cause = ConnectionResetError() if is_sent else ConnectionRefusedError()
        options["retry_policy"]["errback"](cause, 0)
        assert (SLOT_HEADER in headers) is not is_sent
        raise OperationalError from ConnectionRefusedError()

    def sleep(length_s):
        slept.append(length_s)
        worker.clock.advance(length_s)

    monkeypatch.setattr(Signature, "apply_async", apply_async)
    monkeypatch.setattr(celery, "time", SimpleNamespace(sleep=sleep))
    shaper.hold(1.0)
    own = shaper.reserve()
    admission = worker.shaped.admission_of({}, (), {})
    if is_sent is None:
        with pytest.raises(KeyboardInterrupt):
            worker.shaped._caught_up(admission, own)
        assert worker.used == 1
        return
    slot, _ = worker.shaped._caught_up(admission, own)
    assert slept == pytest.approx([1.1 if is_sent else 1.0])
    assert (slot.grant.start == own.grant.start) is not is_sent
    assert worker.used == (2 if is_sent else 1)
