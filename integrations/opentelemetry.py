"""OpenTelemetry: metrics of calls and of the state of the stores, through the metrics API.

    from shapekit.integrations.opentelemetry import instrument

    instrument(stripe, github)

The calls of all policies of the process are counted. For the given policies, each collection also reads the
state of their keys: with one trip to the store per policy, and never while a call is made. A call that had to
wait adds an event to the current span.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self
from weakref import WeakKeyDictionary

from shapekit import errors, events
from shapekit._adapters.metrics import (
    COUNTED,
    READ,
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
from shapekit._runtime import process
from shapekit.errors import ConfigError
from shapekit.events import Departed, Event
from shapekit.policy import Policy

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
except ImportError as error:
    raise errors.missing("instrument", "otel") from error

__all__ = ["Instruments", "instrument"]


def instrument(
    *policies: Policy, meter_provider: MeterProvider | None = None, keys: Keys = 20
) -> Instruments:
    """Count the calls of this process from now on, and report the state of the given policies.

    - `keys`: how many keys of each policy get their own attributes, in order of arrival; or which keys, so
      that they are the same in every process. All others share the attribute `other`.
    - `meter_provider`: where the metrics go; by default the global provider. A provider can be instrumented
      again after `close()`.

    `close()` of the result ends it, and so does leaving its `with` block.
    """
    return Instruments(policies, meter_provider, Labels(keys))


class Instruments:
    """The instruments that `instrument` returns: active until `close()`."""

    def __init__(self, policies: Sequence[Policy], provider: MeterProvider | None, labels: Labels) -> None:
        if provider is not None and not callable(getattr(provider, "get_meter", None)):
            fix = "pass a MeterProvider, or leave it out"
            raise ConfigError("meter_provider", provider, "is not a provider of meters", fix)
        default = metrics.get_meter_provider()
        provider = default if provider is None else provider
        self._is_default = provider is default
        # Instruments that were made before a program set its provider report to that one, too.
        if self._is_default and any(each._is_default for each in _ACTIVE):  # noqa: SLF001 - of this class
            raise _instrumented()
        gauges = Gauges(policies, labels)
        meter = provider.get_meter("shapekit")
        waits = meter.create_histogram(
            *_described(WAIT_DURATION), explicit_bucket_boundaries_advisory=WAIT_BOUNDS
        )
        record: dict[Metric, Callable[..., None]] = {
            WAIT_DURATION: waits.record,
            **{metric: meter.create_counter(*_described(metric)).add for metric in COUNTED},
        }

        def recorder(metric: Metric, *values: str) -> Recorder:
            return partial(record[metric], attributes=_attributes(metric, *values))

        tally = Tally(labels, recorder)
        rounds = _ROUNDS.get(provider)
        if rounds is None:
            rounds = _ROUNDS[provider] = Rounds()
            observable = {
                "counter": meter.create_observable_counter,
                "gauge": meter.create_observable_gauge,
                "sum": meter.create_observable_up_down_counter,
            }
            for metric in READ:
                name, unit, text = _described(metric)
                observable[metric.kind](name, [partial(rounds.observed, metric)], unit, text)
        rounds.open(gauges)
        self._undo = ExitStack()
        self._undo.callback(rounds.close)
        self._undo.callback(events.listen(tally).close)
        self._undo.callback(events.listen(self._mark_span).close)
        self._undo.callback(_ACTIVE.remove, self)
        _ACTIVE.append(self)

    def close(self) -> None:
        """Stop counting and reporting."""
        self._undo.close()

    def _mark_span(self, event: Event) -> None:
        # A span gets its event once, however many providers are instrumented.
        if type(event) is Departed and event.delay > 0 and _ACTIVE[:1] == [self]:
            span = trace.get_current_span()
            if span.is_recording():
                attributes = _attributes(WAIT_DURATION, event.policy, event.key)
                span.add_event("shapekit.departed", {**attributes, "shapekit.wait.duration": event.delay})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Rounds:
    """Shares one reading per collection among instruments that are observed one by one.

    A collection observes every instrument once. So the first instrument that has already had the current
    reading starts a new one, in whatever order and however often they are observed.
    """

    def __init__(self) -> None:
        self._gauges: Gauges | None = None
        self._lock = process.lock()

    def open(self, gauges: Gauges) -> None:
        """Read these gauges from now on."""
        with self._lock:
            is_free = self._gauges is None
            if is_free:
                self._gauges = gauges
                self._reading: Reading = {}
                self._had: set[Metric] = set(READ)
        if not is_free:
            gauges.close()
            raise _instrumented()

    def observed(self, metric: Metric, options: CallbackOptions) -> list[Observation]:
        """The observations for the instrument of a metric."""
        with self._lock:
            if self._gauges is None:
                return []
            if metric in self._had:
                self._reading = self._gauges.read()
                self._had.clear()
            self._had.add(metric)
            samples = self._reading[metric]
        return [Observation(value, _attributes(metric, *labels)) for labels, value in samples]

    def close(self) -> None:
        """Stop reading. The instruments stay, as none can be unregistered."""
        with self._lock:
            gauges, self._gauges = self._gauges, None
        if gauges is not None:
            gauges.close()


_ACTIVE: list[Instruments] = []
_ROUNDS: WeakKeyDictionary[MeterProvider, Rounds] = WeakKeyDictionary()
"""By provider: an instrument that a provider has made keeps its first callback."""


def _instrumented() -> ConfigError:
    fix = "pass all policies to one call of instrument, or close() the other first"
    return ConfigError("meter_provider", None, "is instrumented already", fix)


def _attributes(metric: Metric, *values: str) -> dict[str, str]:
    return {f"shapekit.{label}": value for label, value in zip(metric.labels, values, strict=True)}


def _described(metric: Metric) -> tuple[str, str, str]:
    """Name, unit and description."""
    return f"shapekit.{metric.name}", metric.unit, metric.text
