"""shapekit makes calls to other people's APIs leave at the right moment.

Every limit is a constraint on the moment of departure: ask it "now?" (`Gate`) or "when?".
"""

from shapekit.admission import Admission
from shapekit.algorithms.base import Algorithm, Outcome
from shapekit.algorithms.compose import all_of, any_of, first_of
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA
from shapekit.algorithms.leaky_bucket import LeakyBucket
from shapekit.algorithms.quota import Quota
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.algorithms.token_bucket import TokenBucket
from shapekit.clock import Clock, SystemClock
from shapekit.decision import Decision, Forecast
from shapekit.decorator import shaped
from shapekit.errors import (
    ConfigError,
    CostExceedsLimitError,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    ShapekitError,
    StoreUnavailableError,
)
from shapekit.gate import Gate
from shapekit.manual_clock import ManualClock
from shapekit.policy import Policy
from shapekit.rate import Rate
from shapekit.reservation import Outlook, Reservation
from shapekit.shaper import Shaper
from shapekit.stores.base import Store
from shapekit.stores.memory import MemoryStore
from shapekit.switch import off

__all__ = [
    "GCRA",
    "Admission",
    "Algorithm",
    "Clock",
    "ConfigError",
    "CostExceedsLimitError",
    "Decision",
    "FixedWindow",
    "Forecast",
    "Gate",
    "LeakyBucket",
    "ManualClock",
    "MemoryStore",
    "Outcome",
    "Outlook",
    "Policy",
    "QueueFullError",
    "Quota",
    "QuotaExhaustedError",
    "Rate",
    "RateLimitedError",
    "Reservation",
    "ShapekitError",
    "Shaper",
    "SlidingWindow",
    "SlidingWindowLog",
    "Store",
    "StoreUnavailableError",
    "SystemClock",
    "TokenBucket",
    "all_of",
    "any_of",
    "first_of",
    "off",
    "shaped",
]
