"""Prometheus: what real scrapes over HTTP show of real policies."""

import pytest
from prometheus_client import CollectorRegistry, Counter

from shapekit import (
    Policy,
    QueueFullError,
    QuotaExhaustedError,
    events,
)
from shapekit._adapters.metrics import WAIT_BOUNDS
from shapekit.integrations.prometheus import instrument
from shapekit.testing import FaultyStore

from ..anew import import_without
from .conftest import STRIPE, call

# calls


def test_calls_are_counted_by_their_outcome(clock, registry, scrape):
    stripe = Policy("10/s", name="stripe", clock=clock, quota="6/day")
    with instrument(stripe, registry=registry):
        call(stripe, 3)
        reservations = [stripe.shaper.reserve(), stripe.shaper.reserve()]
        with pytest.raises(QueueFullError):
            stripe.shaper.schedule(max_wait=0)
        for reservation in reservations[::-1]:
            assert reservation.cancel()
        call(stripe, 3)
        with pytest.raises(QuotaExhaustedError):
            call(stripe)
        seen = scrape()
    counted = {
        labels["outcome"]: seen("shapekit_calls_total", **labels)
        for labels in seen.labels("shapekit_calls_total")
    }
    refused = {"queue_full": 1, "quota_exhausted": 1, "account_exhausted": 0}
    assert counted == {"departed": 6, **refused, "cancelled": 2}


def test_waits_are_the_seconds_that_callers_waited(clock, registry, scrape):
    stripe = Policy("10/s", name="stripe", clock=clock)
    waits = [0.0]
    with instrument(stripe, registry=registry):
        call(stripe)
        for reservation in [stripe.shaper.reserve() for _ in range(4)]:
            reservation.cancel()
        call(stripe)  # 0.1 s
        stripe.shaper.hold("2s")
        call(stripe)  # 2.1 s: after the hold, and after the one before
        seen = scrape()
    waits += [0.1, 2.1]
    assert seen("shapekit_wait_duration_seconds_count", **STRIPE) == 3
    assert seen("shapekit_wait_duration_seconds_sum", **STRIPE) == pytest.approx(sum(waits))
    buckets = {
        float(labels["le"]): seen("shapekit_wait_duration_seconds_bucket", **labels)
        for labels in seen.labels("shapekit_wait_duration_seconds_bucket")
    }
    assert buckets == {bound: sum(wait <= bound for wait in waits) for bound in (*WAIT_BOUNDS, float("inf"))}


def test_a_hold_that_is_placed_again_is_one_hold(clock, registry, scrape):
    stripe = Policy("10/s", name="stripe", clock=clock)
    with instrument(stripe, registry=registry):
        stripe.shaper.hold("10s")
        for _ in range(3):
            stripe.shaper.hold("12s")
        assert scrape()("shapekit_holds_total", **STRIPE) == 1
        clock.advance(20)
        stripe.shaper.hold("10s")
        assert scrape()("shapekit_holds_total", **STRIPE) == 2


def test_calls_that_are_only_measured_have_outcomes_of_their_own(clock, registry, scrape):
    stripe = Policy("10/s", name="stripe", clock=clock, enforce=False, max_wait="100ms")
    with instrument(stripe, registry=registry):
        call(stripe, 5)
        seen = scrape()
    calls = {
        labels["outcome"]: seen("shapekit_calls_total", **labels)
        for labels in seen.labels("shapekit_calls_total")
    }
    assert (calls.pop("measured"), calls.pop("measured_refused")) == (2, 3)
    assert set(calls.values()) == {0}
    assert seen("shapekit_wait_duration_seconds_count", **STRIPE) == 0


def test_policies_that_are_not_given_are_counted_too(clock, registry, scrape):
    other = Policy("10/s", name="other", clock=clock)
    with instrument(registry=registry):
        call(other, 2)
        seen = scrape()
    assert seen("shapekit_calls_total", policy="other", key="default", outcome="departed") == 2
    assert seen.labels("shapekit_queue_delay_seconds") == []


def test_counters_start_at_zero(clock, registry, scrape):
    stripe = Policy("10/s", name="stripe", clock=clock)
    with instrument(stripe, registry=registry):
        seen = scrape()
    for outcome in ("departed", "queue_full", "quota_exhausted", "account_exhausted", "cancelled"):
        assert seen("shapekit_calls_total", **STRIPE, outcome=outcome) == 0
    assert seen("shapekit_wait_duration_seconds_count", **STRIPE) == 0
    assert seen("shapekit_store_errors_total", policy="stripe") == 0
    assert seen("shapekit_reading_errors_total", policy="stripe") == 0


# keys


def test_ten_thousand_keys_make_a_bounded_number_of_series(clock, registry, scrape):
    tenants = Policy("1000/s", name="tenants", clock=clock, key="{tenant}")
    with instrument(tenants, registry=registry, keys=20):
        for number in range(10_000):
            tenants.shaper.schedule(f"tenant-{number}")
        seen = scrape()
    shown = {labels["key"] for _, labels in [(n, dict(ls)) for n, ls in seen.series] if "key" in labels}
    assert shown == {f"tenant-{number}" for number in range(20)} | {"other"}
    calls = [seen("shapekit_calls_total", policy="tenants", key=key, outcome="departed") for key in shown]
    assert sorted(calls) == [1] * 20 + [9_980]
    assert len(seen.series) < 21 * 40


def test_named_keys_are_read_before_the_first_call(clock, registry, scrape):
    tenants = Policy("10/s", name="tenants", clock=clock, key="{tenant}")
    tenants.shaper.hold("30s", key="alice")
    with instrument(tenants, registry=registry, keys=["alice"]):
        tenants.shaper.reserve("bob")
        seen = scrape()
    assert seen("shapekit_hold_remaining_seconds", policy="tenants", key="alice") == 30
    assert len(seen.labels("shapekit_hold_remaining_seconds")) == 1


# the registry


def test_the_instrumentation_ends_and_leaves_nothing_behind(clock, registry, scrape):
    stripe = Policy("10/s", name="stripe", clock=clock)
    for _ in range(2):
        with instrument(stripe, registry=registry):
            call(stripe)
            assert scrape()("shapekit_calls_total", **STRIPE, outcome="departed") == 1
        call(stripe)
        assert scrape().series == {}
    assert not events.EVERYWHERE


def test_twice_in_one_registry_is_refused_and_changes_nothing(clock, registry, scrape, refused):
    stripe = Policy("10/s", name="stripe", clock=clock)
    with instrument(stripe, registry=registry):
        error = refused(lambda: instrument(registry=registry), "registry")
        assert "shapekit_" in error.bound
        call(stripe)
        assert scrape()("shapekit_calls_total", **STRIPE, outcome="departed") == 1
        with instrument(registry=CollectorRegistry()):
            call(stripe)
        assert scrape()("shapekit_calls_total", **STRIPE, outcome="departed") == 2


def test_a_registry_that_has_one_of_the_names_is_left_as_it_was(registry, refused):
    mine = Counter("shapekit_holds", "mine", registry=registry)
    mine.inc()
    refused(lambda: instrument(registry=registry), "registry")
    assert [family.name for family in registry.collect()] == ["shapekit_holds"]
    assert not events.EVERYWHERE


def test_registering_makes_no_call_to_a_store(store):
    faulty = FaultyStore(store)
    with instrument(
        Policy("10/s", name="stripe", store=faulty), registry=CollectorRegistry(auto_describe=True)
    ):
        assert faulty.calls == 0


def test_policies_with_the_same_labels_are_refused(clock, registry, refused):
    twins = [Policy("10/s", name="stripe", clock=clock) for _ in range(2)]
    refused(lambda: instrument(*twins, registry=registry), "policies")
    refused(lambda: instrument("stripe", registry=registry), "policies")
    refused(lambda: instrument(keys="stripe", registry=registry), "keys")
    assert list(registry.collect()) == []


def test_without_the_package_the_import_error_names_the_extra(monkeypatch):
    with pytest.raises(ImportError, match=r'pip install "shapekit\[prometheus\]"'):
        import_without("prometheus_client", "prometheus", monkeypatch)


def test_an_argument_that_is_no_registry_is_refused(clock, refused):
    for wrong in (5, None, "registry"):
        refused(lambda wrong=wrong: instrument(Policy("1/s", clock=clock), registry=wrong), "registry")
