"""For tests of code that is limited: virtual time, and a judge for any recorded history."""

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
