"""OpenTelemetry: what a real SDK collects of real policies."""

import pytest
import redis.asyncio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shapekit import Policy, QueueFullError, RedisStore, ResilientStore, StoreUnavailableError, events
from shapekit._adapters.metrics import READ, WAIT_BOUNDS
from shapekit.integrations import prometheus
from shapekit.integrations.opentelemetry import instrument
from shapekit.testing import FaultyStore

from ..anew import import_without
from .conftest import STRIPE, call


class Collected:
    """One collection: the metrics by name, and the points of each by its attributes."""

    def __init__(self, reader):
        data = reader.get_metrics_data()
        self.metrics = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                assert scope.scope.name == "shapekit"
                self.metrics |= {metric.name: metric for metric in scope.metrics}

    def points(self, name):
        metric = self.metrics.get(name)
        return {} if metric is None else {_labels(p): p for p in metric.data.data_points}

    def __call__(self, name, **labels):
        """The value of one point; None if there is none."""
        point = self.points(name).get(frozenset(labels.items()))
        return None if point is None else point.value


def _labels(point):
    assert all(name.startswith("shapekit.") for name in point.attributes)
    return frozenset((name.removeprefix("shapekit."), value) for name, value in point.attributes.items())


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader):
    provider = MeterProvider([reader])
    yield provider
    provider.shutdown()


@pytest.fixture
def collect(reader, provider):
    return lambda: Collected(reader)


def test_calls_and_waits(clock, provider, collect):
    stripe = Policy("10/s", name="stripe", clock=clock)
    with instrument(stripe, meter_provider=provider):
        call(stripe, 2)
        for reservation in [stripe.shaper.reserve() for _ in range(2)][::-1]:
            reservation.cancel()
        with pytest.raises(QueueFullError):
            call(stripe, max_wait=0)
        seen = collect()
    assert seen("shapekit.calls", **STRIPE, outcome="departed") == 2
    assert seen("shapekit.calls", **STRIPE, outcome="cancelled") == 2
    assert seen("shapekit.calls", **STRIPE, outcome="queue_full") == 1
    [point] = seen.points("shapekit.wait.duration").values()
    assert (point.count, point.sum) == (2, pytest.approx(0.1))
    assert point.explicit_bounds == WAIT_BOUNDS
    assert point.bucket_counts[0] == 1
    assert point.bucket_counts[WAIT_BOUNDS.index(0.1)] == 1


def test_the_gauges_show_the_state_of_a_key(clock, provider, collect):
    stripe = Policy("10/s", name="stripe", clock=clock)
    with instrument(stripe, meter_provider=provider):
        for _ in range(3):
            stripe.shaper.reserve()
        stripe.shaper.hold("30s")
        seen = collect()
        assert seen("shapekit.queue.delay", **STRIPE) == pytest.approx(30.3)
        assert seen("shapekit.hold.remaining", **STRIPE) == 30
        assert seen("shapekit.holds", **STRIPE) == 1
        assert seen("shapekit.queue.depth", policy="stripe") == 0
        assert seen("shapekit.store.up", policy="stripe") == 1
        clock.advance(100)
        assert collect()("shapekit.queue.delay", **STRIPE) == 0


def test_names_and_units(clock, provider, collect):
    stripe = Policy("10/s", name="stripe", clock=clock, quota="100/day")
    with instrument(stripe, meter_provider=provider):
        call(stripe)
        units = {name: metric.unit for name, metric in collect().metrics.items()}
    assert units == {
        "shapekit.wait.duration": "s",
        "shapekit.calls": "{call}",
        "shapekit.queue.depth": "{call}",
        "shapekit.queue.delay": "s",
        "shapekit.hold.remaining": "s",
        "shapekit.quota.used": "{unit}",
        "shapekit.limit.rate": "{call}/s",
        "shapekit.quota.limit": "{unit}",
        "shapekit.store.up": "{store}",
        "shapekit.reading.errors": "{error}",
    }


def test_ten_thousand_keys_make_a_bounded_number_of_points(clock, provider, collect):
    tenants = Policy("1000/s", name="tenants", clock=clock, key="{tenant}")
    with instrument(tenants, meter_provider=provider, keys=20):
        for number in range(10_000):
            tenants.shaper.schedule(f"tenant-{number}")
        seen = collect()
    shown = {dict(labels)["key"]: point.value for labels, point in seen.points("shapekit.calls").items()}
    assert shown == {"other": 9_980} | {f"tenant-{number}": 1 for number in range(20)}
    assert len(seen.points("shapekit.wait.duration")) == 21
    assert len(seen.points("shapekit.queue.delay")) == 20


def test_one_collection_reads_each_policy_once(store, provider, collect):
    counting = FaultyStore(store)
    stripe = Policy("10/s", name="stripe", store=counting)
    github = Policy("10/s", name="github", store=counting)
    with instrument(stripe, github, meter_provider=provider):
        for number in range(1, 4):
            collect()
            assert counting.calls == 2 * number


def test_two_readers_both_see_the_present(store):
    readers = [InMemoryMetricReader(), InMemoryMetricReader()]
    provider = MeterProvider(readers)
    stripe = Policy("10/s", name="stripe", store=store)
    with instrument(stripe, meter_provider=provider):
        for length in (10, 20, 30):
            stripe.shaper.hold(length)
            for reader in readers:
                assert Collected(reader)("shapekit.hold.remaining", **STRIPE) == length
    provider.shutdown()


def test_a_store_that_is_gone_is_counted_and_fails_no_collection(store, provider, collect):
    gone = FaultyStore(store)
    stripe = Policy("10/s", name="stripe", store=gone)
    with instrument(stripe, meter_provider=provider):
        gone.down = True
        with pytest.raises(StoreUnavailableError):
            call(stripe)
        seen = collect()
        assert seen("shapekit.store.up", policy="stripe") == 0
        assert seen("shapekit.store.errors", policy="stripe") == 1
        assert seen("shapekit.reading.errors", policy="stripe") == 1
        assert seen.points("shapekit.queue.delay") == {}
        gone.mend()
        assert collect()("shapekit.store.up", policy="stripe") == 1


def test_a_store_that_is_lost_is_counted(store, provider, collect):
    primary = FaultyStore(store)
    stripe = Policy("10/s", name="stripe", store=ResilientStore(primary, on_outage="open"))
    with instrument(stripe, meter_provider=provider):
        primary.down = True
        call(stripe, 3)
        seen = collect()
    assert seen("shapekit.store.losses") == 1
    assert seen("shapekit.store.up", policy="stripe") == 0


def test_the_instrumentation_ends_with_its_block(clock, provider, collect):
    stripe = Policy("10/s", name="stripe", clock=clock)
    with instrument(stripe, meter_provider=provider):
        call(stripe)
        collect()
    call(stripe)
    seen = collect()
    assert seen("shapekit.calls", **STRIPE, outcome="departed") == 1
    assert seen.points("shapekit.queue.depth") == {}
    assert not events.EVERYWHERE


def test_a_provider_is_instrumented_once_at_a_time(clock, provider, collect, refused):
    stripe, github = (Policy("10/s", name=name, clock=clock) for name in ("stripe", "github"))
    with instrument(stripe, meter_provider=provider):
        refused(lambda: instrument(github, meter_provider=provider), "meter_provider")
        call(stripe)
        assert collect()("shapekit.store.up", policy="stripe") == 1
    with instrument(github, meter_provider=provider):
        call(github)
        seen = collect()
    assert seen("shapekit.store.up", policy="github") == 1
    assert seen("shapekit.store.up", policy="stripe") is None
    assert seen("shapekit.calls", policy="github", key="default", outcome="departed") == 1
    assert seen("shapekit.calls", **STRIPE, outcome="departed") == 1
    assert not events.EVERYWHERE


def test_a_provider_that_is_set_afterwards_is_instrumented_once(
    clock, provider, collect, refused, monkeypatch
):
    stripe, github = (Policy("10/s", name=name, clock=clock) for name in ("stripe", "github"))
    with instrument(stripe):
        monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", lambda: provider)
        refused(lambda: instrument(github), "meter_provider")
        refused(lambda: instrument(github, meter_provider=provider), "meter_provider")
    with instrument(github):
        call(github)
        assert collect()("shapekit.calls", policy="github", key="default", outcome="departed") == 1
    assert not events.EVERYWHERE


def test_policies_with_the_same_labels_are_refused(clock, provider, refused):
    twins = [Policy("10/s", name="stripe", clock=clock) for _ in range(2)]
    refused(lambda: instrument(*twins, meter_provider=provider), "policies")
    refused(lambda: instrument(keys=-1, meter_provider=provider), "keys")
    awaited = Policy("10/s", name="awaited", store=RedisStore(aclient=redis.asyncio.Redis()))
    refused(lambda: instrument(awaited, meter_provider=provider), "policies")
    refused(lambda: instrument(meter_provider=5), "meter_provider")
    assert not events.EVERYWHERE


def test_the_span_of_a_call_that_waited_has_one_event_of_it(clock, provider):
    spans = InMemorySpanExporter()
    traced = TracerProvider()
    traced.add_span_processor(SimpleSpanProcessor(spans))
    tracer = traced.get_tracer("test")
    stripe = Policy("10/s", name="stripe", clock=clock)
    with instrument(), instrument(meter_provider=provider):
        for name in ("at once", "after a while"):
            with tracer.start_as_current_span(name):
                call(stripe)
        call(stripe)  # in no span
    at_once, later = spans.get_finished_spans()
    assert at_once.events == ()
    [event] = later.events
    assert event.name == "shapekit.departed"
    assert event.attributes == {
        "shapekit.policy": "stripe", "shapekit.key": "default", "shapekit.wait.duration": 0.1
    }  # fmt: skip
    traced.shutdown()


def test_the_names_match_those_that_a_collector_exports_to_prometheus(
    clock, provider, collect, registry, scrape
):
    """By the rules for OTLP: dots are underscores, units are written out, counters end in _total."""
    stripe = Policy("10/s", name="stripe", clock=clock, quota="100/day")
    with instrument(stripe, meter_provider=provider), prometheus.instrument(stripe, registry=registry):
        call(stripe, 2)
        collected = collect()
        scraped = {family.name for family in scrape().families}
    made = set()
    for name, metric in collected.metrics.items():
        made.add(name.replace(".", "_") + ("_seconds" if metric.unit == "s" else ""))
    assert {metric.name for metric in READ} <= {name.removeprefix("shapekit.") for name in collected.metrics}
    assert made <= scraped


def test_without_the_package_the_import_error_names_the_extra(monkeypatch):
    with pytest.raises(ImportError, match=r'pip install "shapekit\[otel\]"'):
        import_without("opentelemetry", "opentelemetry", monkeypatch)
