"""Fixtures of the tests of metrics: virtual time, and scrapes as Prometheus makes them."""

import urllib.request

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from shapekit import MemoryStore

STRIPE = {"policy": "stripe", "key": "default"}


def call(policy, times=1, **options):
    """Admits calls, which leave and do nothing."""
    for _ in range(times):
        with policy.admit(**options):
            pass


@pytest.fixture
def store(clock):
    return MemoryStore(clock)


class Scrape:
    """One scrape: the value of each series, by its name and labels."""

    def __init__(self, text):
        self.families = list(text_string_to_metric_families(text))
        self.series = {}
        for family in self.families:
            for sample in family.samples:
                series = (sample.name, frozenset(sample.labels.items()))
                assert series not in self.series, f"{series} is there twice"
                self.series[series] = sample.value

    def __call__(self, name, **labels):
        """The value of one series; None if there is none."""
        return self.series.get((name, frozenset(labels.items())))

    def labels(self, name):
        """The labels of all series of a name."""
        return [dict(labels) for found, labels in self.series if found == name]


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def scrape(registry):
    """Scrapes the registry over HTTP."""
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    url = f"http://127.0.0.1:{server.server_port}/metrics"

    def once():
        with urllib.request.urlopen(url, timeout=30) as response:
            assert response.status == 200
            return Scrape(response.read().decode())

    yield once
    server.shutdown()
    server.server_close()
    thread.join()
