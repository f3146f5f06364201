"""Metrics: their names and labels, and how events become counts.

Prometheus and OpenTelemetry show the same metrics; each integration writes the names as is usual there.
`Labels` decides which keys become labels, so that a metric never has a series for each customer.

Gauges: the state of keys in their stores, read when metrics are collected.

One trip for each policy reads all of its keys that have labels. Calls never pay for it: the collector of the
metrics asks, and waits a second at most for each store that does not answer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from shapekit._runtime import process
from shapekit.algorithms.queue.wire import LOOK
from shapekit.algorithms.quota import quotas_of
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.events import (
    Cancelled,
    Departed,
    Event,
    Held,
    Measured,
    Refused,
    Reserved,
    StoreFailed,
    StoreLost,
)
from shapekit.policy import Policy
from shapekit.rate import SECOND_US, whole
from shapekit.stores.base import DamagedStateError, Store
from shapekit.stores.resilient import Deadline, ResilientStore

OTHER = "other"
"""The label of all keys without their own label."""
MOST_KEYS = 10_000
"""The most keys of a policy that may have their own labels."""
LONGEST_KEY = 128
OUTCOMES = ("departed", "queue_full", "quota_exhausted", "account_exhausted", "cancelled")
"""How a shaped call ends: it leaves, is refused with the error of that code, or gives its slot back."""
WAIT_BOUNDS = (0, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
"""The bounds of the histogram of waits, in seconds. The first counts calls that left at once."""

Keys: TypeAlias = int | Collection[str]
"""Which keys have their own labels: the first so many of each policy, or those that are named."""


class Metric(NamedTuple):
    """One metric; each integration derives its own name from `name`."""

    name: str
    kind: str
    """Histogram, counter, gauge, or sum: a gauge that adds up over processes."""
    unit: str
    """As in UCUM, with what is counted in braces."""
    labels: tuple[str, ...]
    text: str


_KEY = ("policy", "key")
_QUOTA = (*_KEY, "quota")

WAIT_DURATION = Metric(
    "wait.duration", "histogram", "s", _KEY, "How long calls that left had waited for their slot."
)
CALLS = Metric("calls", "counter", "{call}", (*_KEY, "outcome"), "Calls, by what became of them.")
HOLDS = Metric("holds", "counter", "{hold}", _KEY, "How often this process has held a key.")
STORE_ERRORS = Metric(
    "store.errors", "counter", "{error}", ("policy",), "How often a store did not answer a call."
)
STORE_LOSSES = Metric(
    "store.losses", "counter", "{loss}", (), "How often a ResilientStore has lost its primary."
)
COUNTED = (CALLS, HOLDS, STORE_ERRORS, STORE_LOSSES)
"""The metrics that events count."""

QUEUE_DEPTH = Metric(
    "queue.depth", "sum", "{call}", ("policy",), "Calls of this process that sleep until their slot."
)
QUEUE_DELAY = Metric("queue.delay", "gauge", "s", _KEY, "How long a call of cost 1 would wait that came now.")
HOLD_REMAINING = Metric("hold.remaining", "gauge", "s", _KEY, "How long no call leaves; 0 without a hold.")
LIMIT_RATE = Metric(
    "limit.rate",
    "gauge",
    "{call}/s",
    (*_KEY, "set_by"),
    "The paced rate in force, the highest if it is adaptive; and whether the code or an operator has set it.",
)
QUOTA_USED = Metric("quota.used", "gauge", "{unit}", _QUOTA, "What is used of the quota in this period.")
QUOTA_LIMIT = Metric("quota.limit", "gauge", "{unit}", _QUOTA, "What the quota allows in each period.")
STORE_UP = Metric(
    "store.up", "gauge", "{store}", ("policy",), "1 if the store of the policy answers, 0 if it does not."
)
READING_ERRORS = Metric(
    "reading.errors", "counter", "{error}", ("policy",), "How often a store did not answer a collection."
)
READ = (
    *(QUEUE_DEPTH, QUEUE_DELAY, HOLD_REMAINING, LIMIT_RATE, QUOTA_USED, QUOTA_LIMIT, STORE_UP),
    READING_ERRORS,
)
"""The metrics that are not counted by events, but read at each collection."""


class Labels:
    """Which keys have their own labels, for each policy; all others share `other`."""

    def __init__(self, keys: Keys) -> None:
        self._named: frozenset[str] | None = None
        self._most = 0
        if isinstance(keys, str) or not isinstance(keys, int | Collection):
            fix = 'pass 20, or ("alice", "bob")'
            raise ConfigError("keys", keys, "is neither a number nor some keys", fix)
        if isinstance(keys, int):
            self._most = whole("keys", keys, least=0, most=MOST_KEYS)
        else:
            self._named = frozenset(map(_checked_key, keys))
        self._own: dict[str, dict[str, None]] = {}
        self._lock = process.lock()

    def of(self, policy: str, key: str) -> str:
        """The label of a key: itself, or `other`."""
        if self._named is not None:
            return key if key in self._named else OTHER
        with self._lock:
            own = self._own.setdefault(policy, {})
            if key in own:
                return key
            if len(own) >= self._most or not _is_label(key):
                return OTHER
            own[key] = None
            return key

    def own(self, policy: str) -> list[str]:
        """The keys of a policy that have their own labels so far."""
        if self._named is not None:
            return sorted(self._named)
        with self._lock:
            return list(self._own.get(policy, ()))


Recorder: TypeAlias = Callable[[float], object]
"""Adds a value to one series of a metric: how long a call has waited, or how many there were."""


class _CallSeries:
    """The series for the calls of one policy and label, created at the start so that rates begin at 0."""

    __slots__ = ("_ended", "_recorder", "held", "waited")

    def __init__(self, recorder: Callable[..., Recorder], policy: str, label: str) -> None:
        self.waited = recorder(WAIT_DURATION, policy, label)
        self.held = recorder(HOLDS, policy, label)
        self._recorder = partial(recorder, CALLS, policy, label)
        self._ended = {outcome: self._recorder(outcome) for outcome in OUTCOMES}

    def ended(self, outcome: str) -> None:
        """Count a call by how it has ended."""
        if outcome not in self._ended:
            self._ended[outcome] = self._recorder(outcome)
        self._ended[outcome](1)


class Tally:
    """A listener that records each event in the series of its policy and key.

    `recorder` makes the recorder of a metric for values of its labels.
    """

    def __init__(self, labels: Labels, recorder: Callable[..., Recorder]) -> None:
        self._labels = labels
        self._recorder = recorder
        self._series: dict[tuple[str, str], _CallSeries] = {}
        self._lock = process.lock()

    def __call__(self, event: Event) -> None:
        if type(event) is Departed:
            series = self.series(event.policy, event.key)
            series.waited(event.delay)
            series.ended("departed")
        elif type(event) is Reserved:
            pass  # another event will tell how the call ends
        elif type(event) is Refused:
            self.series(event.policy, event.key).ended(event.code)
        elif type(event) is Cancelled:
            self.series(event.policy, event.key).ended("cancelled")
        elif type(event) is Measured:
            outcome = "measured" if event.code is None else "measured_refused"
            self.series(event.policy, event.key).ended(outcome)
        elif type(event) is Held:
            # If a server refuses many calls at once, each of them places the same hold: count it once.
            if event.added == event.length:
                self.series(event.policy, event.key).held(1)
        elif type(event) is StoreFailed:
            self._recorder(STORE_ERRORS, event.policy)(1)
        elif type(event) is StoreLost:
            self._recorder(STORE_LOSSES)(1)

    def series(self, policy: str, key: str) -> _CallSeries:
        """The series for the calls of a key."""
        series = self._series.get((policy, key))
        return self._labelled(policy, key) if series is None else series

    def _labelled(self, policy: str, key: str) -> _CallSeries:
        # They are kept by label and not by key: there may be too many keys.
        label = self._labels.of(policy, key)
        with self._lock:
            if (policy, label) not in self._series:
                self._series[policy, label] = _CallSeries(self._recorder, policy, label)
            return self._series[policy, label]


def _checked_key(key: object) -> str:
    if not isinstance(key, str) or not _is_label(key):
        raise ConfigError("keys", key, "is not a key that a label can show", "pass texts other than 'other'")
    return key


def _is_label(key: str) -> bool:
    """Whether a key is distinct from `other` and from no label, and every exporter can write it."""
    return 0 < len(key) <= LONGEST_KEY and key.isprintable() and key != OTHER


PATIENCE_US = SECOND_US
"""How long to wait for one store: scrapers give up after ten seconds, and there may be several stores."""
ANY_KEY = "default"
"""The key that is read to see whether a store answers, if no key has a label."""

_log = logging.getLogger("shapekit.metrics")


class Sample(NamedTuple):
    """One value of a metric, with its labels in the metric's order."""

    labels: tuple[str, ...]
    value: float


Reading: TypeAlias = dict[Metric, list[Sample]]


class Gauges:
    """The gauges of some policies: `read` asks their stores, and never raises."""

    def __init__(self, policies: Sequence[Policy], labels: Labels) -> None:
        self._policies = _checked(policies)
        self._labels = labels
        self._looks = {
            policy.name: policy.shaper.core.store.bind_many(policy.name, policy.shaper.core.queue, LOOK)
            for policy in policies
        }
        self._deadline = Deadline(PATIENCE_US)
        self._lock = process.lock()
        self._errors = Counter({policy.name: 0 for policy in policies})
        for policy in policies:
            if isinstance(policy.key, str):
                labels.of(policy.name, policy.key)

    def read(self) -> Reading:
        """All gauges as of now, without those of policies whose store does not answer."""
        reading: Reading = {metric: [] for metric in READ}
        silent: set[object] = set()
        for policy in self._policies:
            store, name = policy.shaper.core.store, policy.name
            seen = None if store.server in silent else self._seen(policy, store, silent)
            for metric, sample in seen or ():
                reading[metric].append(sample)
            is_lost = isinstance(store, ResilientStore) and store.is_lost
            reading[STORE_UP].append(Sample((name,), int(seen is not None and not is_lost)))
            reading[QUEUE_DEPTH].append(Sample((name,), policy.shaper.core.sleepers.sleeping))
        with self._lock:
            reading[READING_ERRORS] += [Sample((name,), count) for name, count in self._errors.items()]
        return reading

    def close(self) -> None:
        """End the threads."""
        self._deadline.close()

    def _seen(self, policy: Policy, store: Store, silent: set[object]) -> list[tuple[Metric, Sample]] | None:
        """The gauges of a policy's keys; None if its server does not answer, and is `silent` from then on."""
        keys = self._labels.own(policy.name)
        look = self._looks[policy.name]
        keys_or_any = keys or [ANY_KEY]
        try:
            looked = look(keys_or_any, ()) if store.instant else self._deadline.call(look, keys_or_any, ())
            return [
                found for key, seen in zip(keys, looked, strict=False) for found in _found(policy, key, seen)
            ]
        except Exception as error:
            if process.from_signal(error):
                raise
            # A damaged state is an answer, too: other policies on the same server can be read.
            is_silent = isinstance(error, StoreUnavailableError) and not isinstance(error, DamagedStateError)
            if is_silent:
                silent.add(store.server)
            _log.log(
                logging.DEBUG if is_silent else logging.WARNING,
                "the gauges of %s cannot be read: %s",
                policy.name,
                error,
            )
            with self._lock:
                self._errors[policy.name] += 1
            return None


def _found(policy: Policy, key: str, seen: tuple[Any, int, int]) -> Iterator[tuple[Metric, Sample]]:
    line, now, skew = seen
    queue, labels = policy.shaper.core.queue_of(key), (policy.name, key)
    delay_us, _ = queue.outlook(line, now, 1, 1, skew)
    _, _, until, *_ = queue.confirm(line, now, skew)
    yield QUEUE_DELAY, Sample(labels, delay_us / SECOND_US)
    yield HOLD_REMAINING, Sample(labels, max(0, until - now) / SECOND_US)
    if queue.paced:
        per_second = 0.0 if queue.is_held else SECOND_US * queue.q / queue.p
        yield LIMIT_RATE, Sample((*labels, "operator" if queue.is_set else "code"), per_second)
    names: Counter[str] = Counter()
    for quota in quotas_of(queue, line, now, skew):
        name = f"{quota.limit}/{quota.per}"
        names[name] += 1
        # Quotas that differ only in their time zone still need different labels.
        own = (*labels, name if names[name] == 1 else f"{name} #{names[name]}")
        yield QUOTA_USED, Sample(own, quota.used)
        yield QUOTA_LIMIT, Sample(own, quota.limit)


def _checked(policies: Sequence[Policy]) -> tuple[Policy, ...]:
    names = set()
    for policy in policies:
        if not isinstance(policy, Policy):
            raise ConfigError("policies", policy, "is not a policy", 'pass some, such as Policy("10/s")')
        if policy.shaper.core.store.awaited_only:
            bound = "has a store that can only be awaited, and metrics are read on a thread"
            fix = "give its store a synchronous client too: RedisStore(client, aclient=…)"
            raise ConfigError("policies", policy, bound, fix)
        if policy.name in names:
            fix = "pass one of them, or name them apart"
            raise ConfigError("policies", policy, "has the name of another one", fix)
        names.add(policy.name)
    return tuple(policies)
