"""What can happen to a Redis server, and how it ends."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Fault(NamedTuple):
    """Something that happens to a server."""

    harm: Callable[[Any], object]
    heal: Callable[[Any], object]
    forgets: bool = False
    """Whether the server has forgotten everything when it is back."""
    runs_late: bool = False
    """Whether the server, once it is back, runs commands for which no client waits any more."""


def _command(*words):
    def run(server):
        with server.client() as client:
            client.execute_command(*words)

    return run


FAULTS = {
    "killed": Fault(lambda server: server.kill(), lambda server: server.start(), forgets=True),
    "frozen": Fault(lambda server: server.freeze(), lambda server: server.thaw(), runs_late=True),
    "paused": Fault(
        _command("CLIENT", "PAUSE", 60_000, "WRITE"), _command("CLIENT", "UNPAUSE"), runs_late=True
    ),
    "read-only": Fault(_command("REPLICAOF", "127.0.0.1", 1), _command("REPLICAOF", "NO", "ONE")),
    "out of memory": Fault(
        _command("CONFIG", "SET", "maxmemory", 1), _command("CONFIG", "SET", "maxmemory", 0)
    ),
}
"""Each by its name."""
