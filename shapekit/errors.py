"""The exceptions that shapekit raises, in one tree.

    ShapekitError
    ├── ConfigError (ValueError)            config_invalid        an argument that can never work
    ├── CostExceedsLimitError (ValueError)  cost_exceeds_limit    a cost that can never be admitted
    ├── RateLimitedError                    rate_limit_exceeded   not now; `.retry_after` says when
    │   ├── QueueFullError                  queue_full            the wait is longer than `max_wait`
    │   └── QuotaExhaustedError             quota_exhausted       the budget of the period is spent
    │       └── AccountExhaustedError       account_exhausted     the server says the account is spent
    └── StoreUnavailableError               store_unavailable     the store does not answer

Every class has a `code` that never changes, for places where `isinstance` does not work (two copies
of the package, another process, a log line). Every error pickles.
"""

from __future__ import annotations

import re
from typing import ClassVar

from shapekit.decision import Decision

__all__ = [
    "AccountExhaustedError",
    "ConfigError",
    "CostExceedsLimitError",
    "QueueFullError",
    "QuotaExhaustedError",
    "RateLimitedError",
    "ShapekitError",
    "StoreUnavailableError",
]


_LONGEST_REPR = 80
_URL = re.compile(r"://([^\s/'\"]*(?=@))?([^\s?'\"]*)(\?[^\s'\"]+)?")


def shortened(value: object) -> str:
    """The repr of `value`, cut to a length that suits a log line, without the secrets of a URL in it."""
    if isinstance(value, _Verbatim):
        return value
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__} that cannot be shown>"
    if "://" in text:
        text = _URL.sub(_without_secrets, text)
    if len(text) <= _LONGEST_REPR:
        return text
    # The end says most about a path, the beginning about everything else.
    return f"{text[: _LONGEST_REPR // 2 - 1]}…{text[-_LONGEST_REPR // 2 :]}"


class _Verbatim(str):
    """A value that is shown as it is, without `repr`."""

    __slots__ = ()


UNSHOWN = _Verbatim("(not shown)")
"""Stands for the value of an option that may contain a password or a token."""


def _without_secrets(url: re.Match[str]) -> str:
    user, rest, query = url.groups()
    return f"://{UNSHOWN if user else ''}{rest}{f'?{UNSHOWN}' if query else ''}"


_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000))
_SMALL_UNITS = ((1_000_000, "s"), (1_000, "ms"), (1, "µs"))


def span_words(span_us: int) -> str:
    """A span of time as text: up to three decimals below a minute, whole seconds above.

    >>> span_words(3_900_000_000), span_words(50_100_000), span_words(99_500), span_words(0)
    ('1 h 05 min', '50.1 s', '99.5 ms', '0 s')
    """
    if span_us < 60_000_000:
        size, unit = next(((size, unit) for size, unit in _SMALL_UNITS if span_us >= size), _SMALL_UNITS[0])
        return f"{span_us / size:.3f}".rstrip("0").rstrip(".") + f" {unit}"
    left, parts, before = span_us, list[str](), 0
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        if number:
            is_of_clock = before and unit in ("min", "s")
            parts.append(f"{number:02} {unit}" if is_of_clock else f"{number:,} {unit}")
        before = number
    return " ".join(parts[:3])


def seconds_words(seconds: float) -> str:
    """`span_words` of a span in seconds."""
    return span_words(round(seconds * 1_000_000))


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**18 else shortened(value)


def amount_text(units: int, digits: int) -> str:
    """An amount as text, with the last `digits` digits of `units` after the decimal point.

    >>> amount_text(4_998_000_000, 8), amount_text(5_000_000_000, 8), amount_text(1_500, 0)
    ('49.98', '50', '1,500')
    """
    if not digits:
        return _number(units)
    whole, rest = divmod(units, 10**digits)
    return f"{whole:,}.{rest:0{digits}}".rstrip("0").rstrip(".")


def whose(key: str, policy: str | None) -> str:
    """How messages name a key and its policy."""
    where = f"key {shortened(key)}"
    return where if policy is None else f"policy {shortened(policy)}, {where}"


class ShapekitError(Exception):
    """The base class of all errors of shapekit."""

    code: ClassVar[str] = "shapekit_error"
    """The kind of error, as a text that never changes."""

    def __repr__(self) -> str:
        # Many logs, such as Celery's, show no more of an error than this.
        return f"{type(self).__name__}({str(self)!r})"


class ConfigError(ShapekitError, ValueError):
    """An argument can never work. The message names the field, its value, what is wrong and how to fix it."""

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
        """The same error, which also says where the field is, such as in a file and its table."""
        return ConfigError(f"{place} {self.field}", _Verbatim(self.value), self.bound, self.fix)

    def __str__(self) -> str:
        return f"{self.field}={self.value} {self.bound}; {self.fix}"


class CostExceedsLimitError(ShapekitError, ValueError):
    """A call costs more than its limit can ever admit, however long it waits."""

    code: ClassVar[str] = "cost_exceeds_limit"

    def __init__(
        self,
        cost: int,
        limit: int,
        key: str,
        what: str = "burst",
        policy: str | None = None,
        unit: str | None = None,
        digits: int = 0,
    ) -> None:
        self.cost = cost
        """The cost of the call."""
        self.limit = limit
        """The largest cost that is ever admitted."""
        self.key = key
        """The key of the call."""
        self.what = what
        """What bounds the cost: "burst", "capacity", "limit"."""
        self.policy = policy
        """The name of the policy, shaper or gate."""
        self.unit = unit
        """What the cost counts: "tokens", "USD"; None where that is not known."""
        self.digits = digits
        """How many of the last digits of cost and limit are after the decimal point: 8 for money."""
        super().__init__(cost, limit, key, what, policy, unit, digits)

    def __str__(self) -> str:
        cost, limit = amount_text(self.cost, self.digits), amount_text(self.limit, self.digits)
        # Any of several options may have set a limit; the other words are options themselves.
        bound = "the limit" if self.what == "limit" else self.what
        if self.unit is not None:
            problem = f"cost {cost} {self.unit} exceeds the budget of {limit} {self.unit}"
        elif self.what == "limit":
            problem = f"cost={cost} exceeds the limit of {limit}"
        else:
            problem = f"cost={cost} exceeds {self.what}={limit}"
        return (
            f"{whose(self.key, self.policy)}: {problem}, so the call can never be admitted; "
            f"raise {bound}, or split the call"
        )


class RateLimitedError(ShapekitError):
    """A limit denies the call for now; `retry_after` is the number of seconds until it would admit it."""

    code: ClassVar[str] = "rate_limit_exceeded"

    def __init__(self, decision: Decision, key: str, policy: str | None = None) -> None:
        # Serializers without classes, such as JSON, turn it into a list.
        self.decision = decision if isinstance(decision, Decision) else Decision(*decision)
        """The denial."""
        self.key = key
        """The key whose limit denied the call."""
        self.policy = policy
        """The name of the policy, shaper or gate."""
        super().__init__(self.decision, key, policy)

    @property
    def retry_after(self) -> float:
        """Seconds from the decision until the same call would be admitted."""
        return self.decision.retry_after

    def __str__(self) -> str:
        decision = self.decision
        by = f" by {decision.binding!r}" if decision.binding else ""
        return (
            f"{whose(self.key, self.policy)}: limited{by}, {_number(decision.current)} of "
            f"{_number(decision.limit)} used; retry after {self._retry_words}"
        )

    @property
    def _retry_words(self) -> str:
        return span_words(self.decision.retry_after_us)


class QueueFullError(RateLimitedError):
    """The call would wait longer than `max_wait` allows; it has consumed nothing."""

    code: ClassVar[str] = "queue_full"

    def __init__(
        self,
        decision: Decision,
        key: str,
        delay: float,
        max_wait: float,
        policy: str | None = None,
        held: bool = False,
    ) -> None:
        self.delay = delay
        """Seconds that the call would have waited."""
        self.max_wait = max_wait
        """The most seconds that the call was allowed to wait."""
        self.held = held
        """Whether the key, or a part of it, is held."""
        super().__init__(decision, key, policy)
        self.args = (self.decision, key, delay, max_wait, policy, held)

    def __str__(self) -> str:
        if self.decision.binding == "concurrency":
            limit = self.decision.limit
            calls = "1 call is" if limit == 1 else f"{_number(limit)} calls are"
            within = f" within max_wait={seconds_words(self.max_wait)}" if self.max_wait else ""
            return (
                f"{whose(self.key, self.policy)}: {calls} in flight, and none has ended{within}; "
                f"raise concurrency or max_wait, or retry after {self._retry_words}"
            )
        is_held, or_else = (" is held", "") if self.held else ("", " lower the traffic,")
        bound, fix = self._bound
        wait = f"a wait of {seconds_words(self.delay)} exceeds {bound}"
        fix = f"{fix},{or_else} or retry after {self._retry_words}"
        return f"{whose(self.key, self.policy)}{is_held}: {wait}; {fix}"

    @property
    def _bound(self) -> tuple[str, str]:
        """What the wait exceeds, and how to allow for more."""
        return f"max_wait={seconds_words(self.max_wait)}", "raise max_wait"


class QuotaExhaustedError(RateLimitedError):
    """The quota of the current period is spent; `retry_after` is the time until the next period."""

    code: ClassVar[str] = "quota_exhausted"

    def __init__(
        self,
        decision: Decision,
        key: str,
        policy: str | None = None,
        unit: str | None = None,
        digits: int = 0,
    ) -> None:
        self.unit = unit
        """What the budget counts: "USD"; None where that is not known."""
        self.digits = digits
        """How many of the last digits of the amounts are after the decimal point: 8 for money."""
        super().__init__(decision, key, policy)
        self.args = (self.decision, key, policy, unit, digits)

    def __str__(self) -> str:
        decision = self.decision
        if self.unit is not None:
            used, limit = (amount_text(units, self.digits) for units in (decision.current, decision.limit))
            return (
                f"{whose(self.key, self.policy)}: the spend is used up: {used} of {limit} {self.unit} are "
                "spent or reserved, and the call may cost more than is left; "
                f"retry after {self._retry_words}"
            )
        return (
            f"{whose(self.key, self.policy)}: the quota is spent, {_number(decision.current)} of "
            f"{_number(decision.limit)} used; the next period begins in {self._retry_words}"
        )


class AccountExhaustedError(QuotaExhaustedError):
    """The server says that the account has nothing left to spend; `retry_after` is the time until shapekit
    lets a call try again.
    """

    code: ClassVar[str] = "account_exhausted"

    def __str__(self) -> str:
        return (
            f"{whose(self.key, self.policy)}: the server says that the account has nothing left to spend; "
            f"add credit or raise its spending limit, and retry after {self._retry_words}"
        )


class StoreUnavailableError(ShapekitError):
    """The store does not answer: it is closed, unreachable, too slow, or refuses to write."""

    code: ClassVar[str] = "store_unavailable"


def after_waiting(error: QueueFullError, waited_s: float, max_wait_s: float) -> QueueFullError:
    """A refusal of a call that had already waited, with delay and bound of its whole wait."""
    delay_s = error.delay + waited_s
    return QueueFullError(error.decision, error.key, delay_s, max_wait_s, error.policy, error.held)


def gave_up(key: str, policy: str, waited_us: int) -> TimeoutError:
    """The error of a call whose `timeout` has passed."""
    return TimeoutError(f"{whose(key, policy)}: gave up waiting after {span_words(waited_us)}")


def missing(what: str, extra: str) -> ImportError:
    """The error for a third-party package that is not installed."""
    return ImportError(f'{what} needs a package that is not installed: pip install "shapekit[{extra}]"')
