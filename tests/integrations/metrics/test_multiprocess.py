"""The Prometheus client's multiprocess mode: one process shows what many have counted."""

import os
import subprocess
import sys

import pytest

from .conftest import Scrape

WORKER = """
import sys
from shapekit import Policy, SQLiteStore
from shapekit.integrations.prometheus import instrument

stripe = Policy("1000/s", name="stripe", store=SQLiteStore(sys.argv[1]), quota="100/day", key="{tenant}")
instrument(stripe)
for _ in range(int(sys.argv[2])):
    stripe.shaper.schedule("alice")
stripe.shaper.reserve("bob")
"""

EXPORTER = """
import sys
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from shapekit import Policy, SQLiteStore
from shapekit.integrations.prometheus import ShapekitCollector

stripe = Policy("1000/s", name="stripe", store=SQLiteStore(sys.argv[1]), quota="100/day", key="{tenant}")
registry = CollectorRegistry()
MultiProcessCollector(registry)
registry.register(ShapekitCollector(stripe, keys=["alice", "bob"]))
sys.stdout.write(generate_latest(registry).decode())
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "metrics").mkdir()

    def script(source, *arguments):
        ran = subprocess.run(
            [sys.executable, "-c", source, str(tmp_path / "limits.db"), *map(str, arguments)],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    return script


def test_counts_are_of_all_processes_and_gauges_are_read_where_they_are_shown(run):
    for calls in (3, 4):
        run(WORKER, calls)
    seen = Scrape(run(EXPORTER))
    alice = {"policy": "stripe", "key": "alice"}
    assert seen("shapekit_calls_total", **alice, outcome="departed") == 7
    assert seen("shapekit_wait_duration_seconds_count", **alice) == 7
    assert seen("shapekit_wait_duration_seconds_bucket", **alice, le="+Inf") == 7
    assert seen("shapekit_quota_used", **alice, quota="100/day") == 7
    assert seen("shapekit_quota_used", policy="stripe", key="bob", quota="100/day") == 2
    assert seen("shapekit_store_up", policy="stripe") == 1
