"""A program that gevent has patched: its greenlets wait for their slots, and let each other run."""

import json
import subprocess
import sys

import pytest

from shapekit.testing import check_pace

from ..crew import PATIENCE_S
from ..redis_server import shared_server

CALLS = 20
PROGRAM = """
import sys
name, first, store, calls = sys.argv[1:]
if first == "shapekit":
    from shapekit import Policy
from gevent import joinall, monkey, spawn
monkey.patch_all()

import json
import time

from shapekit import Policy

policy = Policy("20/s", name=name, store=store or None, concurrency=2)
dues = []

def call():
    with policy.admit() as admission:
        dues.append(admission.reservation.grant.due_us / 1e6)
        time.sleep(0.005)

began, worked = time.monotonic(), time.process_time()
joinall([spawn(call) for _ in range(int(calls))], raise_error=True)
share = (time.process_time() - worked) / (time.monotonic() - began)
policy.close()
print(json.dumps([dues, share]))
"""


@pytest.mark.parametrize("first", ["gevent", "shapekit"])
@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_greenlets_leave_at_the_rate_and_keep_no_processor_busy(first, store, tmp_path):
    urls = {"memory": "", "sqlite": str(tmp_path / "limits.db"), "redis": shared_server().url}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"greenlets-{first}", first, urls[store], str(CALLS)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    dues, share = json.loads(done.stdout)
    assert len(dues) == CALLS
    # By the time of the queue, which stands still for late calls.
    check_pace(dues, "20/s", tolerance="1us")
    # Those that wait in a loop instead of asleep take a whole processor.
    assert share < 0.5
