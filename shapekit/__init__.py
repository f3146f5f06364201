"""shapekit makes calls to other people's APIs leave at the right moment.

Every limit is a constraint on the moment of departure: ask it "now?" (`Gate`) or "when?" (`Shaper`).
"""

from typing import TYPE_CHECKING, Any

from shapekit._queue.adaptive import AdaptiveRate
from shapekit._runtime.drivers import AsyncAlarm
from shapekit._runtime.process import off
from shapekit.algorithms.base import Algorithm, Outcome
from shapekit.algorithms.compose import all_of, any_of, first_of
from shapekit.algorithms.fixed_window import FixedWindow
from shapekit.algorithms.gcra import GCRA, LeakyBucket, TokenBucket
from shapekit.algorithms.inflight import Concurrency
from shapekit.algorithms.queue.adaptive import Adaptive
from shapekit.algorithms.quota import Quota, QuotaUsage
from shapekit.algorithms.sliding_log import SlidingWindowLog
from shapekit.algorithms.sliding_window import SlidingWindow
from shapekit.clock import Clock, ManualClock, SystemClock
from shapekit.decision import Decision, Forecast
from shapekit.decorator import shaped
from shapekit.errors import (
    AccountExhaustedError,
    ConfigError,
    CostExceedsLimitError,
    QueueFullError,
    QuotaExhaustedError,
    RateLimitedError,
    ShapekitError,
    StoreUnavailableError,
)
from shapekit.events import listen
from shapekit.gate import Gate
from shapekit.policy import Admission, Policy
from shapekit.rate import Rate
from shapekit.shaper import Outlook, Reservation, Shaper
from shapekit.stores.base import Store
from shapekit.stores.memory import MemoryStore

if TYPE_CHECKING:
    from shapekit.algorithms.overrides import Override
    from shapekit.llm import LLMBudget
    from shapekit.llm.call import LLMCall
    from shapekit.llm.prices import Spending
    from shapekit.llm.usage import TokenUsage
    from shapekit.stores.redis import RedisStore as RedisStore
    from shapekit.stores.resilient import ResilientStore
    from shapekit.stores.sqlite import SQLiteStore

__all__ = [
    "GCRA",
    "AccountExhaustedError",
    "Adaptive",
    "AdaptiveRate",
    "Admission",
    "Algorithm",
    "AsyncAlarm",
    "Clock",
    "Concurrency",
    "ConfigError",
    "CostExceedsLimitError",
    "Decision",
    "FixedWindow",
    "Forecast",
    "Gate",
    "LLMBudget",
    "LLMCall",
    "LeakyBucket",
    "ManualClock",
    "MemoryStore",
    "Outcome",
    "Outlook",
    "Override",
    "Policy",
    "QueueFullError",
    "Quota",
    "QuotaExhaustedError",
    "QuotaUsage",
    "Rate",
    "RateLimitedError",
    "Reservation",
    "ResilientStore",
    "SQLiteStore",
    "ShapekitError",
    "Shaper",
    "SlidingWindow",
    "SlidingWindowLog",
    "Spending",
    "Store",
    "StoreUnavailableError",
    "SystemClock",
    "TokenBucket",
    "TokenUsage",
    "all_of",
    "any_of",
    "first_of",
    "listen",
    "off",
    "shaped",
]

# Loaded on first use. RedisStore is not in `__all__`: without redis installed, `import *` would fail.
_ON_DEMAND = {
    "LLMBudget": "shapekit.llm.budget",
    "LLMCall": "shapekit.llm.call",
    "Override": "shapekit.algorithms.overrides",
    "RedisStore": "shapekit.stores.redis.store",
    "ResilientStore": "shapekit.stores.resilient",
    "SQLiteStore": "shapekit.stores.sqlite",
    "Spending": "shapekit.llm.prices",
    "TokenUsage": "shapekit.llm.usage",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_DEMAND})


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - loaded on first use only

    return getattr(import_module(_ON_DEMAND[name]), name)
