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
    """Whether the server runs, once it is back, what nobody waits for any more."""


def _tell(*command):
    def tell(server):
        with server.client() as client:
            client.execute_command(*command)

    return tell


FAULTS = {
    "killed": Fault(lambda server: server.kill(), lambda server: server.start(), forgets=True),
    "frozen": Fault(lambda server: server.freeze(), lambda server: server.thaw(), runs_late=True),
    "paused": Fault(_tell("CLIENT", "PAUSE", 60_000, "WRITE"), _tell("CLIENT", "UNPAUSE"), runs_late=True),
    "read-only": Fault(_tell("REPLICAOF", "127.0.0.1", 1), _tell("REPLICAOF", "NO", "ONE")),
    "out of memory": Fault(_tell("CONFIG", "SET", "maxmemory", 1), _tell("CONFIG", "SET", "maxmemory", 0)),
}
"""Each by its name."""
