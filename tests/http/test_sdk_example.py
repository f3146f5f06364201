"""The example of the SDKs does what it says."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "openai_and_anthropic.py"


def test_each_sdk_keeps_to_its_rate_and_waits_when_it_is_told_to():
    run = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True, timeout=60
    )
    lines = re.findall(r"^ +([\d.]+) s  (\d+)( \(the SDK tries again\))?$", run.stdout, re.MULTILINE)
    assert len(lines) == 10
    for arrivals in (lines[:5], lines[5:]):
        instants = [float(at) for at, _, _ in arrivals]
        assert [status for _, status, _ in arrivals] == ["200", "429", "200", "200", "200"]
        assert sum(bool(again) for _, _, again in arrivals) == 1
        assert instants[2] - instants[1] >= 0.95
        # Three turns after the hold: those of the two that waited, and one of the repetition's own.
        assert instants[4] - instants[1] >= 1.55
    assert run.stdout.count("answers: ['yes', 'yes', 'yes', 'yes']") == 2
    assert run.stderr == ""
