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
TURN_S = 0.2


def test_each_sdk_keeps_to_its_rate_and_waits_when_it_is_told_to():
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-u", str(EXAMPLE)], **pipes) as process,
        watched(process.pid) as witness,
    ):
        heard = [(time.monotonic(), line) for line in process.stdout]
        complaints = process.stderr.read()
    assert (process.returncode, complaints) == (0, "")
    lines = [(at, *found.groups()) for at, line in heard if (found := ARRIVAL.match(line))]
    assert len(lines) == 10
    for arrivals in (lines[:5], lines[5:]):
        instants = [float(told) for _, told, _, _ in arrivals]
        assert [status for _, _, status, _ in arrivals] == ["200", "429", "200", "200", "200"]
        assert sum(bool(again) for *_, again in arrivals) == 1
        assert instants[2] - instants[1] >= 0.95
        # Three turns after the hold: those of the two that waited, and one of the repetition's own. They are
        # counted from the slot of the one that was refused, which may have been late.
        refused_at = arrivals[1][0]
        late = witness.stalls.within(refused_at - TURN_S, refused_at)
        assert instants[4] - instants[1] >= 1.55 - late
    assert [line for _, line in heard].count("answers: ['yes', 'yes', 'yes', 'yes']\n") == 2
