"""What it costs a call that leaves at once to be counted: `python tests/benchmarks/metrics.py`.

The same call with nobody listening, with a listener that does nothing, and with each integration, in rounds
one after the other; the processor time of this thread, median of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from time import thread_time_ns

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from shapekit import Shaper, events
from shapekit.integrations import opentelemetry, prometheus

ROUNDS = 15
CALLS = 20_000

SUBJECTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "nobody listens": nullcontext,
    "a listener that does nothing": lambda: events.listen(lambda _: None),
    "prometheus": lambda: prometheus.instrument(registry=CollectorRegistry()),
    "prometheus, key without label": lambda: prometheus.instrument(registry=CollectorRegistry(), keys=0),
    "opentelemetry": lambda: opentelemetry.instrument(meter_provider=MeterProvider([InMemoryMetricReader()])),
}


def one_round(watched: AbstractContextManager[object]) -> float:
    """µs a call."""
    shaper = Shaper("1000000000/s", burst=1_000_000, name="benchmark")
    with watched:
        start = thread_time_ns()
        for _ in range(CALLS):
            shaper.schedule("alice")
        return (thread_time_ns() - start) / CALLS / 1_000


def main() -> None:
    """Print the table."""
    rounds: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    for _ in range(ROUNDS):
        for name, watch in SUBJECTS.items():
            rounds[name].append(one_round(watch()))
    plain = median(rounds["nobody listens"])
    for name, taken in rounds.items():
        print(f"{name:30} {median(taken):6.2f} µs   {median(taken) - plain:+6.2f}")


if __name__ == "__main__":
    main()
