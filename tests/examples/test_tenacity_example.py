"""The example of retrying does what it says."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "tenacity_retry.py"


def test_workers_retry_within_their_budget():
    run = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True, timeout=60
    )
    numbers = [int(number) for number in re.findall(r"\d+", run.stdout)]
    calls, done, failed, requests, *statuses = numbers[:-3]
    retries, share, reserve = numbers[-3:]
    by_status = dict(zip(statuses[::2], statuses[1::2], strict=True))
    assert (calls, share, reserve) == (40, 20, 4)
    assert done + failed == calls
    assert by_status[200] == done
    assert by_status[429] == 1
    assert requests == sum(by_status.values()) == calls + retries
    assert 4 <= retries <= 12
    assert run.stderr == ""
