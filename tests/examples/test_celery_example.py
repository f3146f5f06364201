"""The example of a fleet does what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "celery_app" / "run.py"


def test_two_workers_keep_one_rate_and_let_others_pass():
    command = [sys.executable, str(EXAMPLE)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.findall(
        r"^(anna|bert): 100 calls at ([\d.]+)/s, at most (\d+) in any second$", run.stdout, re.MULTILINE
    )
    assert [name for name, _, _ in found] == ["anna", "bert"]
    for _, rate, worst in found:
        assert 15 <= float(rate) <= 20.5  # a machine that is busy misses slots
        assert int(worst) <= 22  # one slot late at most, and the task's own way to the clock
    assert "2 x 100 tasks published" in run.stdout
