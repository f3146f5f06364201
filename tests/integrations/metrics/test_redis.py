"""On a real Redis: a scrape sees what all processes share, in one trip, and outlives the server."""

import socket

import pytest

from shapekit import Policy, RedisStore
from shapekit.integrations.prometheus import instrument

from ...redis_server import RedisServer

TENANTS = [f"tenant-{number}" for number in range(50)]


@pytest.fixture
def server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def store(server):
    store = RedisStore.from_url(server.url)
    yield store
    store.close()


def scripts(server):
    """The number of script calls that the server has answered."""
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval", "fcall"))


def test_a_scrape_sees_the_calls_of_other_processes_in_one_trip_for_each_policy(
    server, store, registry, scrape
):
    policies = [
        Policy("10/s", name=name, store=store, key="{tenant}", quota="100/day") for name in ("a", "b")
    ]
    other_store = RedisStore.from_url(server.url)
    elsewhere = Policy("10/s", name="a", store=other_store, key="{tenant}", quota="100/day")
    for _ in range(3):
        elsewhere.shaper.reserve("tenant-7")
    elsewhere.shaper.hold("1h", key="tenant-8")
    with instrument(*policies, registry=registry, keys=TENANTS):
        scrape()
        before = scripts(server)
        seen = scrape()
        assert scripts(server) == before + len(policies)
    other_store.close()
    here = {"policy": "a", "key": "tenant-7"}
    assert 3_590 < seen("shapekit_hold_remaining_seconds", policy="a", key="tenant-8") <= 3_600
    assert seen("shapekit_quota_used", **here, quota="100/day") == 3
    assert seen("shapekit_quota_limit", **here, quota="100/day") == 100
    assert seen("shapekit_quota_used", policy="b", key="tenant-7", quota="100/day") == 0
    assert len(seen.labels("shapekit_queue_delay_seconds")) == 2 * len(TENANTS)


def test_a_server_that_dies_is_reported_and_read_again_when_it_comes_back(server, store, registry, scrape):
    stripe = Policy("10/s", name="stripe", store=store)
    with instrument(stripe, registry=registry):
        assert scrape()("shapekit_store_up", policy="stripe") == 1
        server.kill()
        for failures in (1, 2):
            seen = scrape()
            assert seen("shapekit_store_up", policy="stripe") == 0
            assert seen("shapekit_reading_errors_total", policy="stripe") == failures
        server.start()
        seen = scrape()
        assert seen("shapekit_store_up", policy="stripe") == 1
        assert seen("shapekit_queue_delay_seconds", policy="stripe", key="default") == 0


def test_a_damaged_state_is_no_fault_of_the_other_policies_there(server, store, registry, scrape):
    stripe, github = (Policy("10/s", name=name, store=store) for name in ("stripe", "github"))
    stripe.shaper.reserve()
    with server.client() as client:
        [state] = [key for key in client.scan_iter() if b"stripe:default" in key]
        client.set(state, b"garbage")
    with instrument(stripe, github, registry=registry):
        seen = scrape()
    assert seen("shapekit_reading_errors_total", policy="stripe") == 1
    assert seen("shapekit_store_up", policy="github") == 1
    assert seen("shapekit_queue_delay_seconds", policy="github", key="default") == 0


def test_a_server_is_probed_though_no_key_has_a_label(server, store, registry, scrape):
    tenants = Policy("10/s", name="tenants", store=store, key="{tenant}")
    with instrument(tenants, registry=registry, keys=0):
        assert scrape()("shapekit_store_up", policy="tenants") == 1
        server.kill()
        assert scrape()("shapekit_store_up", policy="tenants") == 0


def test_a_server_that_hangs_holds_up_no_scrape(server, registry, scrape):
    store = RedisStore.from_url(f"{server.url}?socket_timeout=3600")
    stripe = Policy("10/s", name="stripe", store=store)
    with instrument(stripe, registry=registry):
        assert scrape()("shapekit_store_up", policy="stripe") == 1
        server.freeze()
        seen = scrape()  # otherwise this would wait for an hour
        assert seen("shapekit_store_up", policy="stripe") == 0
        server.thaw()
    store.close()


def test_a_server_that_is_silent_is_waited_for_once(registry, scrape):
    """However many policies are on it, each with a store of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}"
        policies = [Policy("10/s", name=name, store=url) for name in "abc"]
        with instrument(*policies, registry=registry):
            seen = scrape()
        listening.setblocking(False)
        listening.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert [seen("shapekit_store_up", policy=name) for name in "abc"] == [0, 0, 0]
    assert RedisStore.from_url(url).server == RedisStore.from_url(url + "/1").server
    assert RedisStore.from_url(url).server != RedisStore.from_url("redis://127.0.0.1:1").server
    for policy in policies:
        policy.close()
