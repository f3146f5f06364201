"""The example of a shared rate does what it says."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "httpx_shared_rate.py"


def test_two_workers_share_a_rate_and_wait_together():
    run = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True, timeout=60
    )
    lines = re.findall(r"^ +([\d.]+) s  (anna|bert)  (\d+)$", run.stdout, re.MULTILINE)
    instants = [float(at) for at, _, _ in lines]
    assert {name for _, name, _ in lines} == {"anna", "bert"}
    assert [status for _, _, status in lines] == ["200"] * 4 + ["429"] + ["200"] * 7
    # Of two workers, only the call of the other one may have been on its way.
    assert sum(at < instants[4] + 0.95 for at in instants[5:]) <= 1
    assert run.stdout.endswith("12 requests, workers ended with [0, 0]\n")
    assert run.stderr == ""
