"""What the tests of clocks share."""

import pytest

from ..crew import PATIENCE_S


@pytest.fixture
def patient_settling(monkeypatch):
    """`advance` gives a woken thread all the time it needs, also on a machine that stalls."""
    monkeypatch.setattr("shapekit.clock._SETTLE_S", PATIENCE_S)
