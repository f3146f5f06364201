"""Tools for tests of shaped code: virtual time, checks of recorded departures, and tests for stores."""

from shapekit.clock import ManualClock
from shapekit.testing.conformance import StoreConformance
from shapekit.testing.faulty import FaultyStore
from shapekit.testing.history import Departure, PaceError, check_pace, check_window

__all__ = [
    "Departure",
    "FaultyStore",
    "ManualClock",
    "PaceError",
    "StoreConformance",
    "check_pace",
    "check_window",
]
