"""The thread that does what others leave to it."""

import logging

import pytest

from shapekit._runtime import process


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_whatever_is_raised_there_the_next_is_done(afterwards, caplog, error):
    def fail():
        raise error("this")

    process.background_ready()
    with caplog.at_level(logging.ERROR, "shapekit"):
        process.in_background(fail)
        afterwards()
    (record,) = caplog.records
    assert record.exc_info[0] is error
