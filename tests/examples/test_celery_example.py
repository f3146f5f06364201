"""The example of a fleet does what it says."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..witness import watched

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "celery_app" / "run.py"


def test_two_workers_share_one_rate_and_let_other_tasks_pass():
    command, environment = [sys.executable, str(EXAMPLE)], {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        # The workers run as soon as this line is printed, and so the witness finds them.
        published = "2 x 100 tasks published, 20 a second for each account\n"
        assert any(line == published for line in run.stdout)
        began = time.monotonic()
        with watched(run.pid) as witness:
            output = run.communicate(timeout=120)[0]
        stalled = witness.stalls.within(began, time.monotonic())
    assert run.returncode == 0
    found = re.findall(
        r"^(anna|bert): 100 calls at ([\d.]+)/s, at most (\d+) in any second$", output, re.MULTILINE
    )
    assert [name for name, _, _ in found] == ["anna", "bert"]
    for _, rate, worst in found:
        # A machine that is busy misses slots.
        assert 99 / (99 / 15 + stalled) <= float(rate) <= 20.5
        assert int(worst) <= 22  # one slot late at most, and the task's own way to the clock
