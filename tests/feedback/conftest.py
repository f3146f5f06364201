"""Fixtures of the feedback tests: one answer at a known instant, in the form that a server would use."""

import pytest

from shapekit.feedback import Feedback

NOON = 1_780_056_000.0
"""Fri, 29 May 2026 12:00:00 GMT"""
DATE = "Fri, 29 May 2026 12:00:00 GMT"


@pytest.fixture(scope="session")
def noon():
    return NOON


@pytest.fixture
def read_first():
    """The hint of a new Feedback for its first answer, sent and received around noon on both clocks."""

    def read(status, headers, *, dialect="auto", max_hold="15m", skew=0.0):
        fields = {"Date": DATE, "Content-Type": "application/json", **headers}
        at = NOON + skew
        return Feedback(dialect, max_hold=max_hold).read(status, fields, sent_at=at - 0.1, received_at=at)

    return read
