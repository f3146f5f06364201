"""Everything shapekit raises, in one tree.

    ShapekitError
    ├── ConfigError (ValueError)            config_invalid        an argument that can never work
    ├── CostExceedsLimitError (ValueError)  cost_exceeds_limit    a cost that can never be admitted
    ├── RateLimitedError                    rate_limit_exceeded   not now; `.retry_after` says when
    │   ├── QueueFullError                  queue_full            the wait is longer than `max_wait`
    │   └── QuotaExhaustedError             quota_exhausted       the budget of the period is spent
    └── StoreUnavailableError               store_unavailable     the shared truth cannot be asked

Every class carries a frozen `code`, which survives where `isinstance` does not (two copies of the
package, another process, a log line). Every error pickles.
"""

from __future__ import annotations

from typing import ClassVar

from shapekit.decision import Decision

__all__ = [
    "ConfigError",
    "CostExceedsLimitError",
    "QueueFullError",
    "QuotaExhaustedError",
    "RateLimitedError",
    "ShapekitError",
    "StoreUnavailableError",
]

_LONGEST_REPR = 80


def shortened(value: object) -> str:
    """The repr of `value`, cut to a length a log line can bear."""
    if isinstance(value, _Verbatim):
        return value
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__} that cannot be shown>"
    if len(text) <= _LONGEST_REPR:
        return text
    # The end tells most of a path, the beginning of everything else.
    return f"{text[: _LONGEST_REPR // 2 - 1]}…{text[-_LONGEST_REPR // 2 :]}"


class _Verbatim(str):
    """A value that already is the text to show."""

    __slots__ = ()


class ShapekitError(Exception):
    """The root of the tree: catching it catches everything shapekit raises."""

    code: ClassVar[str] = "shapekit_error"
    """Names the kind of error, and never changes."""


class ConfigError(ShapekitError, ValueError):
    """An argument that can never work: says which field, its value, the bound, and the fix."""

    code: ClassVar[str] = "config_invalid"

    def __init__(self, field: str, value: object, bound: str, fix: str) -> None:
        self.field = field
        """The argument that is wrong; in a file, with the file and the table."""
        self.value = shortened(value)
        """The `repr` of its value, shortened."""
        self.bound = bound
        """What is wrong with the value."""
        self.fix = fix
        """What to write instead."""
        super().__init__(field, _Verbatim(self.value), bound, fix)

    def within(self, place: str) -> ConfigError:
        """The same complaint, saying where the field stands: a file and a table, a decorated function."""
        return ConfigError(f"{place} {self.field}", _Verbatim(self.value), self.bound, self.fix)

    def __str__(self) -> str:
        return f"{self.field}={self.value} {self.bound}; {self.fix}"


class CostExceedsLimitError(ShapekitError, ValueError):
    """A cost that no amount of waiting would admit."""

    code: ClassVar[str] = "cost_exceeds_limit"

    def __init__(self, cost: int, limit: int, key: str, what: str = "burst") -> None:
        self.cost = cost
        """The cost of the call."""
        self.limit = limit
        """The largest cost that is ever admitted."""
        self.key = key
        """The key that was asked for."""
        self.what = what
        """What bounds the cost: "burst", "capacity", "limit"."""
        super().__init__(cost, limit, key, what)

    def __str__(self) -> str:
        return (
            f"cost={shortened(self.cost)} exceeds {self.what}={self.limit} for key {shortened(self.key)}: "
            f"it can never be admitted; raise {self.what} or split the call"
        )


class RateLimitedError(ShapekitError):
    """Not now. `decision` is the denial, `retry_after` the seconds until it would be an admission."""

    code: ClassVar[str] = "rate_limit_exceeded"

    def __init__(self, decision: Decision, key: str) -> None:
        # Serializers that know no classes, such as JSON, make a list of it.
        self.decision = decision if isinstance(decision, Decision) else Decision(*decision)
        """The denial."""
        self.key = key
        """The key that was asked for."""
        super().__init__(self.decision, key)

    @property
    def retry_after(self) -> float:
        """Seconds from the decision until the same call would be admitted."""
        return self.decision.retry_after

    def __str__(self) -> str:
        decision = self.decision
        by = f" by {decision.binding!r}" if decision.binding else ""
        return (
            f"key {shortened(self.key)} is limited{by}: {decision.current} of {decision.limit} used; "
            f"retry after {self.retry_after:.6g} s"
        )


class QueueFullError(RateLimitedError):
    """The wait would be longer than `max_wait` allows; nothing was consumed."""

    code: ClassVar[str] = "queue_full"

    def __init__(self, decision: Decision, key: str, delay: float, max_wait: float) -> None:
        self.delay = delay
        """Seconds that the call would have had to wait."""
        self.max_wait = max_wait
        """Seconds that it was allowed to wait."""
        super().__init__(decision, key)
        self.args = (self.decision, key, delay, max_wait)

    def __str__(self) -> str:
        if self.decision.binding == "concurrency":
            limit = self.decision.limit
            calls = "1 call is" if limit == 1 else f"{limit} calls are"
            after = f" within max_wait={self.max_wait:.6g} s" if self.max_wait else ""
            return (
                f"{calls} in flight for key {shortened(self.key)} and none has ended{after}; "
                "raise concurrency or max_wait, or retry later"
            )
        return (
            f"delay={self.delay:.6g} s exceeds max_wait={self.max_wait:.6g} s for key "
            f"{shortened(self.key)}; raise max_wait, lower the traffic, or retry after the delay"
        )


class QuotaExhaustedError(RateLimitedError):
    """The budget of the running period is spent; `retry_after` leads to the next period."""

    code: ClassVar[str] = "quota_exhausted"

    def __str__(self) -> str:
        return (
            f"quota of key {shortened(self.key)} is spent: {self.decision.current} of "
            f"{self.decision.limit} used; next period in {self.retry_after:.6g} s"
        )


class StoreUnavailableError(ShapekitError):
    """The store cannot be asked: it is closed, gone, too slow, or refuses to write."""

    code: ClassVar[str] = "store_unavailable"


def missing(what: str, extra: str) -> ImportError:
    """What to raise where a third party's package is not installed."""
    return ImportError(f'{what} needs a package that is not installed: pip install "shapekit[{extra}]"')
