"""Slips: what a message carries is read again, and what nobody of us has written is as good as none."""

import pytest

from shapekit import Decision, Policy, QueueFullError
from shapekit.integrations.celery.shape import SLIP, Slip

HEADERS = {"id": "4711", "retries": 2}


def travelling(**more):
    return Slip.travelling({**HEADERS, **more}, Policy("10/s", name="slips").shaper.reserve())


def test_what_was_written_is_read():
    slip = travelling(redelivered=True).at(12.5)
    read = Slip.of({**HEADERS, SLIP: slip.text()})
    assert (read.attempt, read.slot, read.was_redelivered) == ("4711:2:0", 12.5, True)
    assert read.text() == slip.text()


def test_a_refusal_is_raised_as_it_was():
    refused = QueueFullError(Decision(False, 10, 10, 0, 0, 1_000_000), "key", 2.0, 1.0)
    read = Slip.of({**HEADERS, SLIP: Slip.refused(HEADERS, refused).text()})
    assert type(read.error) is QueueFullError
    assert str(read.error) == str(refused)
    assert travelling().error is None


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "5", "null", "{}", '["4711:2:0"', "[1, 2, 3, 4, 5, 6]", 5, b"\xff"]
)
def test_what_cannot_be_read_is_none(text):
    assert Slip.of({**HEADERS, SLIP: text}) is None


def test_that_of_another_attempt_is_none():
    """A retry has the headers of the attempt before it."""
    slip = travelling()
    assert Slip.of({**HEADERS, SLIP: slip.text()})
    assert Slip.of({**HEADERS, "retries": 3, SLIP: slip.text()}) is None
    assert Slip.of({**HEADERS, "replaced_task_nesting": 1, SLIP: slip.text()}) is None
    assert Slip.of(HEADERS) is None
