"""The cost of metrics for a call that leaves at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import thread_time_ns

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from shapekit import Shaper, events
from shapekit.integrations import opentelemetry, prometheus

from .progress import say
from .tables import Column, Effort, Group, Line, Table

NAME = "metrics"
METHOD = """
`Shaper.schedule` of a slot that has come, without a listener, with one that does nothing, and with each
integration.
"""
PLAIN = "no listener"
TAKEN = "a call"

SUBJECTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    PLAIN: nullcontext,
    "a listener that does nothing": lambda: events.listen(lambda _: None),
    "prometheus": lambda: prometheus.instrument(registry=CollectorRegistry()),
    "prometheus, key without label": lambda: prometheus.instrument(registry=CollectorRegistry(), keys=0),
    "opentelemetry": lambda: opentelemetry.instrument(meter_provider=MeterProvider([InMemoryMetricReader()])),
}


def one_round(watched: AbstractContextManager[object], calls: int) -> float:
    """µs a call."""
    shaper = Shaper("1000000000/s", burst=1_000_000, name="benchmark")
    with watched:
        start = thread_time_ns()
        for _ in range(calls):
            shaper.schedule("alice")
        return (thread_time_ns() - start) / calls / 1_000


def measure(effort: Effort) -> Group:
    """All libraries with metrics."""
    rounds: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    for number in range(2 * effort.rounds):
        say(f"round {number + 1} of {2 * effort.rounds}")
        for name, watch in SUBJECTS.items():
            rounds[name].append(one_round(watch(), effort.of(20_000)))
    lines = [Line("shapekit", name, {TAKEN: taken}) for name, taken in rounds.items()]
    table = Table(
        "A call that is counted", [Column(TAKEN, "µs", 2, compared=True)], lines, ("shapekit", PLAIN)
    )
    return Group(NAME, "Metrics", METHOD, [table])
