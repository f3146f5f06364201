"""Gauges: scrapes show the state of keys and stores, cost calls nothing, and never fail."""

import threading

import anyio
import pytest

import shapekit
from shapekit import Policy, Quota, ResilientStore, StoreUnavailableError
from shapekit.integrations.prometheus import ShapekitCollector, instrument
from shapekit.testing import FaultyStore

from .conftest import STRIPE, call

PATIENCE_S = 20.0


def test_the_gauges_show_the_state_of_a_key(clock, registry, scrape):
    stripe = Policy("10/s", name="stripe", clock=clock)
    with instrument(stripe, registry=registry):
        for _ in range(3):
            stripe.shaper.reserve()
        assert scrape()("shapekit_queue_delay_seconds", **STRIPE) == pytest.approx(0.3)
        stripe.shaper.hold("30s")
        seen = scrape()
        assert seen("shapekit_queue_delay_seconds", **STRIPE) == pytest.approx(30.3)
        assert seen("shapekit_hold_remaining_seconds", **STRIPE) == 30
        clock.advance(10)
        assert scrape()("shapekit_hold_remaining_seconds", **STRIPE) == 20
        clock.advance(60)
        seen = scrape()
    assert seen("shapekit_queue_delay_seconds", **STRIPE) == 0
    assert seen("shapekit_hold_remaining_seconds", **STRIPE) == 0
    assert seen("shapekit_store_up", policy="stripe") == 1


def test_the_gauges_show_what_is_used_of_each_quota(clock, registry, scrape):
    local = Quota("100/day", tz="Asia/Tokyo")
    stripe = Policy("10/s", name="stripe", clock=clock, quota="500/month", gates=(Quota("100/day"), local))

    def by_quota(name):
        seen = scrape()
        return {labels["quota"]: seen(name, **labels) for labels in seen.labels(name)}

    with instrument(stripe, registry=registry):
        assert by_quota("shapekit_quota_limit") == {"100/day": 100, "100/day #2": 100, "500/month": 500}
        assert by_quota("shapekit_quota_used") == {"100/day": 0, "100/day #2": 0, "500/month": 0}
        call(stripe, 3)
        assert by_quota("shapekit_quota_used") == {"100/day": 3, "100/day #2": 3, "500/month": 3}
        clock.advance(15 * 3_600)  # midnight in Tokyo
        call(stripe)
        assert by_quota("shapekit_quota_used") == {"100/day": 4, "100/day #2": 1, "500/month": 4}
        stripe.shaper.hold("1h")
        clock.advance(9 * 3_600)
        assert by_quota("shapekit_quota_used") == {"100/day": 0, "100/day #2": 1, "500/month": 4}
        clock.advance(14.5 * 3_600)  # half an hour before midnight in Tokyo, the hold notwithstanding
        call(stripe)
        assert by_quota("shapekit_quota_used") == {"100/day": 1, "100/day #2": 2, "500/month": 5}


def test_a_scrape_takes_no_slot(clock, registry, scrape):
    stripe = Policy("10/s", name="stripe", clock=clock, quota="100/day")
    with instrument(stripe, registry=registry):
        for _ in range(3):
            scrape()
        assert stripe.shaper.reserve().delay == 0


def test_depth_counts_the_calls_that_sleep_in_this_process(registry, scrape):
    clock = shapekit.ManualClock()
    stripe = Policy("10/s", name="stripe", clock=clock)
    with instrument(stripe, registry=registry):
        callers = [threading.Thread(target=stripe.shaper.schedule) for _ in range(4)]
        for caller in callers:
            caller.start()
        with clock._changed:
            assert clock._changed.wait_for(lambda: len(clock._sleepers) == 3, PATIENCE_S)
        assert scrape()("shapekit_queue_depth", policy="stripe") == 3
        clock.advance(1)
        for caller in callers:
            caller.join()
        assert scrape()("shapekit_queue_depth", policy="stripe") == 0
        stripe.shaper.reserve()
        stripe.shaper.reserve()
        assert scrape()("shapekit_queue_depth", policy="stripe") == 0  # a reserved slot is no sleeping call


@pytest.mark.anyio
async def test_depth_counts_tasks_too(registry):
    clock = shapekit.ManualClock()
    stripe = Policy("10/s", name="stripe", clock=clock)

    def depth():
        return registry.get_sample_value("shapekit_queue_depth", {"policy": "stripe"})

    with instrument(stripe, registry=registry):
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(stripe.shaper.aschedule)
            await anyio.wait_all_tasks_blocked()
            assert depth() == 3
            await clock.aadvance(1)
        assert depth() == 0
        count = registry.get_sample_value("shapekit_wait_duration_seconds_count", STRIPE)
    assert count == 4


# stores that are gone


def test_a_store_that_is_gone_is_counted_and_fails_no_scrape(store, registry, scrape):
    gone, here = FaultyStore(store), store
    stripe = Policy("10/s", name="stripe", store=gone)
    github = Policy("10/s", name="github", store=here)
    twin = Policy("10/s", name="twin", store=gone)
    with instrument(stripe, github, twin, registry=registry):
        seen = scrape()
        assert (seen("shapekit_store_up", policy="stripe"), seen("shapekit_store_losses_total")) == (1, 0)
        gone.down = True
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                call(stripe)
        before = gone.calls
        seen = scrape()
        assert gone.calls == before + 1  # the other policy of this store did not ask again
        up = {
            labels["policy"]: seen("shapekit_store_up", **labels)
            for labels in seen.labels("shapekit_store_up")
        }
        assert up == {"stripe": 0, "github": 1, "twin": 0}
        assert seen("shapekit_store_errors_total", policy="stripe") == 2
        assert seen("shapekit_reading_errors_total", policy="stripe") == 1
        assert seen("shapekit_reading_errors_total", policy="twin") == 0
        assert seen("shapekit_queue_delay_seconds", **STRIPE) is None
        assert seen("shapekit_queue_delay_seconds", policy="github", key="default") == 0
        gone.mend()
        seen = scrape()
    assert seen("shapekit_store_up", policy="stripe") == 1
    assert seen("shapekit_queue_delay_seconds", **STRIPE) == 0


def test_a_store_is_probed_though_no_key_has_a_label(store, registry, scrape):
    gone = FaultyStore(store)
    tenants = Policy("10/s", name="tenants", store=gone, key="{tenant}")
    with instrument(tenants, registry=registry):
        assert scrape()("shapekit_store_up", policy="tenants") == 1
        gone.down = True
        seen = scrape()
    assert seen("shapekit_store_up", policy="tenants") == 0
    assert seen.labels("shapekit_queue_delay_seconds") == []


def test_a_store_that_hangs_holds_up_no_scrape(registry, scrape):
    slow = FaultyStore(shapekit.MemoryStore(shapekit.ManualClock()))
    stripe = Policy("10/s", name="stripe", store=slow)
    with instrument(stripe, registry=registry):
        slow.slow = "1h"
        seen = scrape()  # otherwise this would wait for that hour
        assert seen("shapekit_store_up", policy="stripe") == 0
        assert seen("shapekit_reading_errors_total", policy="stripe") == 1
        slow.mend()
        assert scrape()("shapekit_store_up", policy="stripe") == 1


def test_a_store_that_does_without_its_primary_is_not_up(store, registry, scrape):
    primary = FaultyStore(store)
    resilient = ResilientStore(primary, on_outage="open")
    stripe = Policy("10/s", name="stripe", store=resilient)
    with instrument(stripe, registry=registry):
        call(stripe)
        primary.down = True
        call(stripe, 2)
        seen = scrape()
        assert seen("shapekit_store_up", policy="stripe") == 0
        assert seen("shapekit_calls_total", **STRIPE, outcome="departed") == 3
        assert seen("shapekit_store_losses_total") == 1


def test_a_reading_that_fails_in_any_way_fails_no_scrape(store, registry, scrape, monkeypatch, caplog):
    def broken(keys, args):
        raise RuntimeError("of no use")

    bind_many = store.bind_many
    monkeypatch.setattr(
        store, "bind_many", lambda name, *rest: broken if name == "stripe" else bind_many(name, *rest)
    )
    policies = [Policy("10/s", name=name, store=store) for name in ("stripe", "github")]
    with instrument(*policies, registry=registry):
        seen = scrape()
    assert seen("shapekit_store_up", policy="stripe") == 0
    assert seen("shapekit_store_up", policy="github") == 1
    assert seen("shapekit_reading_errors_total", policy="stripe") == 1
    assert "stripe cannot be read: of no use" in caplog.text


# a collector alone


def test_the_collector_works_alone(clock, registry, scrape):
    stripe = Policy("10/s", name="stripe", clock=clock)
    tenants = Policy("10/s", name="tenants", clock=clock, key="{tenant}")
    collector = ShapekitCollector(stripe, tenants)
    registry.register(collector)
    call(stripe)
    seen = scrape()
    assert seen("shapekit_queue_delay_seconds", **STRIPE) == pytest.approx(0.1)
    assert seen("shapekit_store_up", policy="tenants") == 1
    assert not any(name.startswith("shapekit_calls") for name, _ in seen.series)
    collector.close()


def test_the_gauge_of_the_rate_in_force_names_its_source(clock, registry, scrape):
    stripe = Policy("10/s", name="stripe", clock=clock)
    with instrument(stripe, registry=registry):
        assert scrape()("shapekit_limit_rate", **STRIPE, set_by="code") == 10
        stripe.configure("20/s")
        assert scrape()("shapekit_limit_rate", **STRIPE, set_by="operator") == 20
        stripe.configure(state="held")
        assert scrape()("shapekit_limit_rate", **STRIPE, set_by="operator") == 0
        stripe.unconfigure()
        assert scrape()("shapekit_limit_rate", **STRIPE, set_by="code") == 10
