"""Gauges: how the keys of policies stand in their stores, read when somebody looks.

One trip for each policy reads all of its keys that have labels. Calls never pay for it: whoever collects
metrics does the asking, and waits a second at most for each store that does not answer.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from shapekit.algorithms.usage import quotas_of
from shapekit.errors import ConfigError, StoreUnavailableError
from shapekit.metrics import (
    HOLD_REMAINING,
    QUEUE_DELAY,
    QUEUE_DEPTH,
    QUOTA_LIMIT,
    QUOTA_USED,
    READ,
    READING_ERRORS,
    STORE_UP,
    Labels,
    Metric,
)
from shapekit.policy import Policy
from shapekit.rate import SECOND_US
from shapekit.stores.base import Store
from shapekit.stores.deadline import Deadline
from shapekit.stores.resilient import ResilientStore

__all__ = ["Gauges", "Reading", "Sample"]

PATIENCE_US = SECOND_US
"""How long one store is waited for: scrapers give up after ten seconds, and there may be several stores."""
ANY_KEY = "default"
"""What is read to see whether a store answers, where no key has a label."""

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
            policy.name: policy.shaper._store.bind_many(policy.name, policy.shaper.queue, "look")
            for policy in policies
        }
        self._deadline = Deadline(PATIENCE_US)
        self._lock = threading.Lock()
        self._errors = Counter({policy.name: 0 for policy in policies})
        for policy in policies:
            if isinstance(policy.key, str):
                labels.of(policy.name, policy.key)

    def read(self) -> Reading:
        """All gauges as they stand now; those of a policy whose store does not answer are left out."""
        reading: Reading = {metric: [] for metric in READ}
        silent: set[Store] = set()
        for policy in self._policies:
            store, name = policy.shaper._store, policy.name
            seen = None if store in silent else self._seen(policy, store, silent)
            for metric, sample in seen or ():
                reading[metric].append(sample)
            is_lost = isinstance(store, ResilientStore) and store.is_lost
            reading[STORE_UP].append(Sample((name,), int(seen is not None and not is_lost)))
            reading[QUEUE_DEPTH].append(Sample((name,), len(policy.shaper._waiters._alarms)))
        with self._lock:
            reading[READING_ERRORS] += [Sample((name,), count) for name, count in self._errors.items()]
        return reading

    def close(self) -> None:
        """Let go of the threads."""
        self._deadline.close()

    def _seen(self, policy: Policy, store: Store, silent: set[Store]) -> list[tuple[Metric, Sample]] | None:
        """How the keys of a policy stand; None if its store, which is silent then, does not answer."""
        keys = self._labels.own(policy.name)
        look = self._looks[policy.name]
        asked = keys or [ANY_KEY]
        try:
            looked = look(asked, ()) if store.instant else self._deadline.call(look, asked, ())
            return [
                found for key, seen in zip(keys, looked, strict=False) for found in _found(policy, key, seen)
            ]
        except Exception as error:
            is_silent = isinstance(error, StoreUnavailableError)
            if is_silent:
                silent.add(store)
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
    queue, labels = policy.shaper.queue, (policy.name, key)
    delay_us, _ = queue.outlook(line, now, 1, 1, skew)
    _, _, until, *_ = queue.confirm(line, now, skew)
    yield QUEUE_DELAY, Sample(labels, delay_us / SECOND_US)
    yield HOLD_REMAINING, Sample(labels, max(0, until - now) / SECOND_US)
    names: Counter[str] = Counter()
    for quota in quotas_of(queue, line, now, skew):
        name = f"{quota.limit}/{quota.per}"
        names[name] += 1
        # Those that differ in their zone alone still need labels that differ.
        own = (*labels, name if names[name] == 1 else f"{name} #{names[name]}")
        yield QUOTA_USED, Sample(own, quota.used)
        yield QUOTA_LIMIT, Sample(own, quota.limit)


def _checked(policies: Sequence[Policy]) -> tuple[Policy, ...]:
    names = set()
    for policy in policies:
        if not isinstance(policy, Policy):
            raise ConfigError("policies", policy, "is not a policy", 'pass some, such as Policy("10/s")')
        if policy.name in names:
            raise ConfigError(
                "policies", policy, "has the name of another one", "pass one of them, or name them apart"
            )
        names.add(policy.name)
    return tuple(policies)
