"""Reporter: passes the events of one shaper to listeners and to the log.

Events of calls are logged at DEBUG, events of keys at INFO. If the process has not loaded `logging`, nothing
is logged and it stays unloaded; only the warning about a long wait loads it.

Budgets: reads how much of each quota is used, for the BudgetReached event.

A call that takes a slot, or is refused one, reads the usage, at most once a second per key. That costs a trip
to the store, so it is skipped if there are no listeners or no quotas.

Accounts: remembers which keys are held because a server said that the account is exhausted, so that refused
calls get AccountExhaustedError.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shapekit._runtime import process
from shapekit._runtime.drivers import Driver
from shapekit.algorithms.quota import QuotaUsage, quotas_of
from shapekit.clock import Clock, Sleepers, forgets
from shapekit.errors import (
    AccountExhaustedError,
    QueueFullError,
    RateLimitedError,
    StoreUnavailableError,
    seconds_words,
    span_words,
)
from shapekit.events import (
    BudgetReached,
    Cancelled,
    Departed,
    Exhausted,
    Held,
    LimitChanged,
    Listeners,
    Measured,
    RateChanged,
    Refused,
    Reserved,
    Resumed,
    Settled,
    StoreFailed,
)
from shapekit.rate import SECOND_US

if TYPE_CHECKING:
    from logging import Logger

    from shapekit.algorithms.overrides import Overrides
    from shapekit.shaper import Core, Reservation

PERCENTS = (80, 95)
"""The shares of a limit that are reported by default, in percent."""
LOOK_US = SECOND_US
"""How often the usage of a key is read."""
MOST_KEYS = 1_024
"""How many keys are remembered. The shares of a forgotten key are reported again, and if its account is
exhausted, its calls are refused with QueueFullError.
"""


class _Watched:
    """One key: when it was read, and per quota the period, the limit and how many shares were reported."""

    __slots__ = ("looked_us", "reported")

    def __init__(self, looked_us: int) -> None:
        self.looked_us = looked_us
        self.reported: dict[int, tuple[float, int, int]] = {}


class Budgets:
    """Reports how much of each quota of one shaper is used; each share once per period and process."""

    def __init__(self, core: Core) -> None:
        self._name = core.name
        self._queue = core.queue
        self._listeners = core.reporter.listeners
        self._clock = core.clock
        self._read = core.look
        self._settings = core.store.settings(core.name)
        self.has_quotas = bool(quotas_of(core.queue, None, 0, 0))
        self.percents: tuple[int, ...] = PERCENTS
        self._lock = process.lock()
        self.begin()
        forgets(self, Budgets.begin)

    def begin(self) -> None:
        """Start with nothing reported."""
        self._keys: dict[str, _Watched] = {}

    async def look(self, driver: Driver, key: str) -> None:
        """Report the shares that a key has reached, if a read is due. A store that is down is ignored."""
        if self._is_due(key):
            with suppress(StoreUnavailableError):
                self._tell(key, await driver.ask(self._read, key))

    def _is_due(self, key: str) -> bool:
        if not self.has_quotas or not self._listeners:
            return False
        now = self._clock.now_us()
        with self._lock:
            known = self._keys.get(key)
            if known is None:
                process.make_room(self._keys, MOST_KEYS)
                self._keys[key] = _Watched(now)
            elif 0 <= now - known.looked_us < LOOK_US:
                return False
            else:
                known.looked_us = now
        return True

    def _tell(self, key: str, looked: tuple[Any, int, int]) -> None:
        queue = self._settings.program(self._queue, key)
        for place, usage in enumerate(quotas_of(queue, *looked)):
            for percent in self._newly_reached(key, place, usage):
                share = percent / 100
                self._listeners.tell(
                    BudgetReached(self._name, key, usage.name, share, usage.used, usage.limit)
                )

    def _newly_reached(self, key: str, place: int, usage: QuotaUsage) -> tuple[int, ...]:
        """The percentages reached that were not reported in this period."""
        reached = tuple(percent for percent in self.percents if usage.used * 100 >= percent * usage.limit)
        with self._lock:
            known = self._keys.get(key)
            if known is None:
                return ()
            period, limit, reported = known.reported.get(place, (usage.resets_at, usage.limit, 0))
            is_rolling = usage.per.startswith("rolling:")
            if period != usage.resets_at and not is_rolling:
                reported = 0
            if is_rolling or limit != usage.limit:
                # No period begins here: a share is reported again once the usage has fallen below it.
                reported = min(reported, len(reached))
            known.reported[place] = (usage.resets_at, usage.limit, max(reported, len(reached)))
        return reached[reported:]


SLACK_US = SECOND_US
"""Two ends of a hold that differ by less are the same: the store's clock may run differently."""


class Accounts:
    """The keys of one shaper whose accounts are exhausted, according to responses; thread-safe.

    The hold itself is in the store, and all processes obey it. Only a process that received such a response
    knows why the key is held: it refuses calls with AccountExhaustedError, the others with QueueFullError.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = process.lock()
        self.begin()
        forgets(self, Accounts.begin)

    def begin(self) -> None:
        """Start with no exhausted accounts."""
        self._until_us: dict[str, int] = {}

    def exhausted(self, key: str, length_us: int) -> bool:
        """Record that the account of a key is exhausted; False if another response has said so already."""
        with self._lock:
            now = self._clock.now_us()
            before, until = self._until_us.pop(key, now), now + length_us
            process.make_room(self._until_us, MOST_KEYS)
            self._until_us[key] = max(before, until)
        return until > before + SLACK_US

    def forget(self, key: str) -> None:
        """Forget a key whose hold was ended, or that was reset."""
        with self._lock:
            self._until_us.pop(key, None)

    def named(self, error: QueueFullError) -> RateLimitedError:
        """AccountExhaustedError in place of a refusal due to an exhausted account; else the error itself."""
        until_us = self._until_us.get(error.key)
        if until_us is None:
            return error
        left_us = until_us - self._clock.now_us()
        # A shorter delay than the rest of the hold: another process has ended it.
        if left_us <= 0 or error.delay * SECOND_US + SLACK_US < left_us:
            return error
        return AccountExhaustedError(error.decision, error.key, error.policy)


MOST_HOLDS = 1_024
"""How many held keys are remembered; a hold of a forgotten key is reported as new."""

SHAPER_LOG = "shapekit.shaper"
DEBUG, _INFO, _WARNING = 10, 20, 30
LONG_US = 60 * SECOND_US
"""A wait longer than this without a `max_wait` is logged as a warning."""


class Reporter:
    """Passes the events of one shaper to listeners and the log. Without listeners, no event is made."""

    def __init__(self, name: str, clock: Clock, sleepers: Sleepers) -> None:
        self.listeners = Listeners()
        self._name = name
        self._clock = clock
        self._sleepers = sleepers
        self._lock = process.lock()
        self.begin()
        forgets(self, Reporter.begin)

    def begin(self) -> None:
        """Start with nothing reported."""
        self._held_until_us: dict[str, int] = {}
        self._warned: set[str] = set()

    # calls

    def reserved(self, reservation: Reservation) -> None:
        if self.listeners:
            self.listeners.tell(Reserved(self._name, reservation.key, reservation.cost, reservation.delay))

    def waits(self, key: str, wait_us: int, *, is_bounded: bool) -> None:
        """A call begins to wait. The first long wait of a key without a bound is logged as a warning."""
        if wait_us > LONG_US and not is_bounded and self._is_first(key):
            import logging  # noqa: PLC0415 - loaded only to log

            logging.getLogger(SHAPER_LOG).warning(
                "%s: key %r waits %s, and nothing bounds that: max_wait= refuses longer waits at once",
                self._name,
                key,
                span_words(wait_us),
            )
        elif log := _log(SHAPER_LOG, DEBUG):
            log.debug("%s: key %r waits %s", self._name, key, span_words(wait_us))

    def _is_first(self, key: str) -> bool:
        with self._lock:
            is_new = key not in self._warned and len(self._warned) < MOST_KEYS
            if is_new:
                self._warned.add(key)
            return is_new

    def departed(self, key: str, cost: int, delay_us: int = 0, late_us: int = 0) -> None:
        if self.listeners:
            self.listeners.tell(Departed(self._name, key, cost, delay_us / SECOND_US, late_us / SECOND_US))

    def refused(self, key: str, cost: int, error: RateLimitedError, *, waited: bool = False) -> None:
        if self.listeners:
            delay = error.delay if isinstance(error, QueueFullError) else error.retry_after
            self.listeners.tell(Refused(self._name, key, cost, error.code, delay, waited))

    def ended(self, key: str, cost: int, error: BaseException, *, had_slot: bool, returned: bool) -> None:
        """A call that waited will not leave."""
        self.failed(key, error)
        if isinstance(error, RateLimitedError):
            self.refused(key, cost, error, waited=had_slot)
        elif had_slot and self.listeners:
            self.listeners.tell(Cancelled(self._name, key, cost, returned))
        self.stopped(key, error)

    def stopped(self, key: str, error: BaseException) -> None:
        """Log the error of a call that does not leave."""
        if log := _log(SHAPER_LOG, DEBUG):
            log.debug("%s: key %r does not leave: %s: %s", self._name, key, type(error).__name__, error)

    def cancelled(self, reservation: Reservation, *, is_returned: bool = True) -> None:
        if self.listeners:
            self.listeners.tell(Cancelled(self._name, reservation.key, reservation.cost, is_returned))

    def settled(self, reservation: Reservation, actual: int) -> None:
        if self.listeners:
            self.listeners.tell(Settled(self._name, reservation.key, reservation.cost, actual))

    def measured(self, key: str, cost: int, delay: float, code: str | None) -> None:
        """A call passed at once under `enforce=False`; with shaping it would have had this delay or code."""
        if self.listeners:
            self.listeners.tell(Measured(self._name, key, cost, delay, code))
        if log := _log("shapekit.policy", _INFO):
            if code is not None:
                log.info("%s: key %r would have been refused", self._name, key)
            elif delay > 0:
                log.info("%s: key %r would have waited %s", self._name, key, seconds_words(delay))

    # keys

    def held(self, key: str, length_us: int) -> None:
        added_us = self._longer_by_us(key, length_us)
        if not added_us:
            return
        if self.listeners:
            self.listeners.tell(Held(self._name, key, length_us / SECOND_US, added_us / SECOND_US))
        # A server often refuses many calls at once, and each refusal holds the key: only the first is INFO.
        level = _INFO if added_us == length_us else DEBUG
        if log := _log(SHAPER_LOG, level):
            log.log(level, "%s: key %r is held for %s", self._name, key, span_words(length_us))

    def exhausted(self, key: str, length_us: int) -> None:
        """The account of a key has nothing left to spend."""
        if self.listeners:
            self.listeners.tell(Exhausted(self._name, key, length_us / SECOND_US))
        if log := _log(SHAPER_LOG, _WARNING):
            log.warning(
                "%s: the server says that the account of key %r has nothing left to spend; held for %s",
                self._name,
                key,
                span_words(length_us),
            )

    def resumed(self, key: str, left_us: int) -> None:
        with self._lock:
            until, before = self._clock.now_us() + left_us, self._held_until_us.get(key)
            if before is not None:
                self._held_until_us[key] = until
        if before == until:
            return  # reported just now
        if self.listeners:
            self.listeners.tell(Resumed(self._name, key, left_us / SECOND_US))
        if log := _log(SHAPER_LOG, _INFO):
            log.info("%s: the hold of key %r ends in %s", self._name, key, span_words(left_us))

    def rate_changed(self, key: str, rate: float, before: float) -> None:
        if self.listeners:
            self.listeners.tell(RateChanged(self._name, key, rate, before))
        level = _INFO if rate < before else DEBUG
        if log := _log(SHAPER_LOG, level):
            log.log(level, "%s: key %r goes from %.4g/s to %.4g/s", self._name, key, before, rate)

    def overrides_changed(self, _: str, before: Overrides, after: Overrides) -> None:
        """Operators have changed limits. Reports in the background, since a store's lock may be held here."""
        if self.listeners or _log(SHAPER_LOG, _INFO):
            process.background_ready()
            process.in_background(self._tell_overrides, before, after)

    def _tell_overrides(self, before: Overrides, after: Overrides) -> None:
        from shapekit.algorithms.overrides import difference  # noqa: PLC0415 - only where something is set

        for key, (old, new) in difference(before, after).items():
            limit, known = (one.words if one else "" for one in (new, old))
            by, reason = (new.by, new.reason) if new else ("", "")
            if self.listeners:
                self.listeners.tell(LimitChanged(self._name, key, limit, known, by, reason))
            if log := _log(SHAPER_LOG, _INFO):
                of_key = "" if key is None else f", key {key!r}"
                change = f"{limit}, set by {by}" if limit else "as in the code again"
                log.info("%s%s: %s", self._name, of_key, change)

    def was_reset(self, key: str) -> None:
        with self._lock:
            self._held_until_us.pop(key, None)
        if log := _log(SHAPER_LOG, _INFO):
            log.info("%s: key %r was reset", self._name, key)

    def _longer_by_us(self, key: str, length_us: int) -> int:
        """By how much a hold is longer than the known one; remembers the longer one."""
        with self._lock:
            now, known = self._clock.now_us(), self._held_until_us
            until = now + length_us
            before = known.pop(key, now)
            if len(known) >= MOST_HOLDS:
                known = {other: end for other, end in known.copy().items() if end > now}
                process.make_room(known, MOST_HOLDS)
                self._held_until_us = known
            known[key] = until
        # The store keeps the longer hold, so a longer known one must have been ended elsewhere.
        return length_us if before > until else until - max(before, now)

    # the store

    def watching(self, key: str) -> _Watch:
        """A context manager that reports errors of the store as events."""
        return _Watch(self, key)

    def failed(self, key: str, error: BaseException | None) -> None:
        """A call ended with an error, perhaps because the store did not answer."""
        # A closed shaper raises the same error.
        if isinstance(error, StoreUnavailableError) and self.listeners and not self._sleepers.is_closed:
            self.listeners.tell(StoreFailed(self._name, key, str(error)))


class _Watch:
    """The context manager of `watching`."""

    __slots__ = ("_key", "_reporter")

    def __init__(self, reporter: Reporter, key: str) -> None:
        self._reporter = reporter
        self._key = key

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._reporter.failed(self._key, error)


LOGS: dict[str, Logger] = {}
"""The loggers used so far, by name."""


def _log(name: str, level: int) -> Logger | None:
    """The logger, if it logs this level."""
    log = LOGS.get(name)
    if log is None:
        # A module that another thread is just importing may not have the function yet.
        get = getattr(sys.modules.get("logging"), "getLogger", None)
        if get is None:
            return None
        log = LOGS[name] = get(name)
    return log if log.isEnabledFor(level) else None
