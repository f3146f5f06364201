"""The example of the SDKs does what it says."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..witness import watched

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "openai_and_anthropic.py"
ARRIVAL = re.compile(r" +([\d.]+) s  (\d+)( \(the SDK tries again\))?$")
SLOT_S = 0.2


def test_each_sdk_keeps_to_its_rate_and_obeys_a_retry_after():
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-u", str(EXAMPLE)], **pipes) as process,
        watched(process.pid) as witness,
    ):
        lines_read = [(time.monotonic(), line) for line in process.stdout]
        complaints = process.stderr.read()
    assert (process.returncode, complaints) == (0, "")
    lines = [(at, *found.groups()) for at, line in lines_read if (found := ARRIVAL.match(line))]
    assert len(lines) == 10
    for arrivals in (lines[:5], lines[5:]):
        instants = [float(instant) for _, instant, _, _ in arrivals]
        assert [status for _, _, status, _ in arrivals] == ["200", "429", "200", "200", "200"]
        assert sum(bool(again) for *_, again in arrivals) == 1
        assert instants[2] - instants[1] >= 0.95
        # Three slots after the hold: those of the two calls that waited, and one of the retry. They are
        # counted from the slot of the refused call, which may have been late.
        refused_at = arrivals[1][0]
        late = witness.stalls.within(refused_at - SLOT_S, refused_at)
        assert instants[4] - instants[1] >= 1.55 - late
    assert [line for _, line in lines_read].count("answers: ['yes', 'yes', 'yes', 'yes']\n") == 2
