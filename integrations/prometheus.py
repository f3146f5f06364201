"""Prometheus: metrics of calls and of the state of the stores, for the official Python client.

    from prometheus_client import start_http_server
    from shapekit.integrations.prometheus import instrument

    instrument(stripe, github)
    start_http_server(9000)

The calls of all policies of the process are counted. For the given policies, each scrape also reads the state
of their keys: with one trip to the store per policy, and never while a call is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self, TypeAlias

from shapekit import errors, events
from shapekit._adapters.metrics import (
    COUNTED,
    READ,
    STORE_ERRORS,
    WAIT_BOUNDS,
    WAIT_DURATION,
    Gauges,
    Keys,
    Labels,
    Metric,
    Reading,
    Recorder,
    Tally,
)
from shapekit.errors import ConfigError
from shapekit.policy import Policy

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise errors.missing("instrument", "prometheus") from error

__all__ = ["Instruments", "ShapekitCollector", "instrument"]


Family: TypeAlias = "CounterMetricFamily | GaugeMetricFamily"


def instrument(*policies: Policy, registry: CollectorRegistry = REGISTRY, keys: Keys = 20) -> Instruments:
    """Count the calls of this process from now on, and show the state of the given policies.

    - `keys`: how many keys of each policy get their own labels, in order of arrival; or which keys, so that
      they are the same in every process. All others share the label `other`.
    - `registry`: where the metrics are registered. Instrument each registry once.

    `close()` of the result ends it, and so does leaving its `with` block.
    """
    return Instruments(policies, registry, Labels(keys))


class ShapekitCollector(Collector):
    """Shows the state of policies in their stores, read by each scrape, and counts no calls.

    For a process that exports what other processes have counted, as in the client's multiprocess mode. It
    sees no calls, so it reads the named `keys`, and the keys of policies that have a fixed one.
    """

    def __init__(self, *policies: Policy, keys: Keys | Labels = 1) -> None:
        self._gauges = Gauges(policies, keys if isinstance(keys, Labels) else Labels(keys))

    def describe(self) -> list[Family]:
        """The metrics without values, so that registering asks no store."""
        return list(_families({metric: [] for metric in READ}))

    def collect(self) -> list[Family]:
        """All gauges, read now. Never raises."""
        return list(_families(self._gauges.read()))

    def close(self) -> None:
        """Stop the threads that ask the stores."""
        self._gauges.close()


class Instruments:
    """The instruments that `instrument` returns: active until `close()`."""

    def __init__(self, policies: Sequence[Policy], registry: CollectorRegistry, labels: Labels) -> None:
        if not callable(getattr(registry, "register", None)):
            fix = "pass a CollectorRegistry, or leave it out"
            raise ConfigError("registry", registry, "is not a registry of metrics", fix)
        instruments: dict[Metric, Any] = {
            WAIT_DURATION: Histogram(*_described(WAIT_DURATION), registry=None, buckets=WAIT_BOUNDS),
            **{metric: Counter(*_described(metric), registry=None) for metric in COUNTED},
        }

        def recorder(metric: Metric, *values: str) -> Recorder:
            series: Any = instruments[metric].labels(*values) if values else instruments[metric]
            record: Recorder = series.observe if metric is WAIT_DURATION else series.inc
            return record

        collector = ShapekitCollector(*policies, keys=labels)
        tally = Tally(labels, recorder)
        for policy in policies:
            recorder(STORE_ERRORS, policy.name)
            for key in labels.own(policy.name):
                tally.series(policy.name, key)
        with ExitStack() as undo:
            undo.callback(collector.close)
            for shown in (collector, *instruments.values()):
                try:
                    registry.register(shown)
                except ValueError as error:
                    bound = f"has these metrics already ({error})"
                    raise ConfigError("registry", registry, bound, "instrument once for each") from None
                undo.callback(registry.unregister, shown)
            undo.callback(events.listen(tally).close)
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Stop counting, and unregister the metrics."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _families(reading: Reading) -> Iterator[Family]:
    for metric, samples in reading.items():
        name, text, labels = _described(metric)
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(name, text, labels=labels)
        for values, value in samples:
            family.add_metric(values, value)
        yield family


def _described(metric: Metric) -> tuple[str, str, list[str]]:
    """Name, text and labels in Prometheus style; counters get their `_total` from the client."""
    unit = "_seconds" if metric.unit == "s" else ""
    return f"shapekit_{metric.name.replace('.', '_')}{unit}", metric.text, list(metric.labels)
