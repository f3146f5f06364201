"""What the tests of processes share: several processes at once, and a place of their own on the server."""

import json
import time

import pytest

from ..redis_server import shared_server
from ..stores.conftest import script
from ..witness import watched

__all__ = ["crew", "prefix", "script"]

PATIENCE_S = 60.0


@pytest.fixture
def prefix(request):
    """A prefix that no other test uses; its keys are taken away again."""
    prefix = f"{request.node.name}-{time.time_ns()}"
    yield prefix
    with shared_server().client() as client:
        for key in client.scan_iter(match=f"{prefix.replace('[', '?').replace(']', '?')}*"):
            client.delete(key)


class Crew:
    """Starts a script several times, lets all begin at once, and returns what each of them prints."""

    stalls = None
    """The stalls that a witness has seen while the scripts and the shared server ran."""

    def __init__(self, script):
        self._script = script

    def __call__(self, source, arguments):
        processes = [self._script(source, *map(json.dumps, each)) for each in arguments]
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        outputs = []
        with watched(shared_server().pid, *[process.pid for process in processes]) as witness:
            for process in processes:
                process.stdin.write("go\n")
            for process in processes:
                out, errors = process.communicate(timeout=PATIENCE_S)
                assert (process.returncode, errors) == (0, "")
                outputs.append(json.loads(out))
        self.stalls = witness.stalls
        return outputs


@pytest.fixture
def crew(script):
    return Crew(script)
