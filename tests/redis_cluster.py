"""A Redis Cluster for tests: three shards, each with a replica, joined by hand."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from .redis_server import PATIENCE_S, RedisServer

ELECTION_S = 3 * PATIENCE_S
SHARDS = 3
SLOTS = 16_384
JOINING_MS, PATIENT_MS, HASTY_MS = 500, 60_000, 2_000
"""How long a server may be silent before it counts as gone. While they join, the interval sets the pace; as
long as no test harms them, it is long, because a busy machine must not look like an outage; and while one of
them is out, the callers of the others must see nothing.
"""
OPTIONS = (
    *("--cluster-enabled", "yes", "--cluster-node-timeout", str(JOINING_MS)),
    # An outage of one shard must not affect the keys of the others.
    *("--cluster-require-full-coverage", "no"),
    *("--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no"),
    *("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
    # Redis 7 does not show replicas that have received nothing yet.
    *("--repl-ping-replica-period", "1"),
)


class ClusterServers:
    """The servers: first the three masters of the beginning, then a replica for each."""

    def __init__(self) -> None:
        self.servers = [RedisServer(*OPTIONS) for _ in range(2 * SHARDS)]
        self._ids: dict[int, str] = {}

    def start(self) -> ClusterServers:
        """Start them, join them, and wait until every server knows that all is well."""
        for server in self.servers:
            server.start()
            self._ids[server.port] = _text(self.command(server, "CLUSTER MYID"))
        masters, replicas = self.servers[:SHARDS], self.servers[SHARDS:]
        for shard, server in enumerate(masters):
            self.command(server, "CLUSTER SET-CONFIG-EPOCH", shard + 1)
            self.command(server, "CLUSTER ADDSLOTS", *self.slots_of(shard))
        for server in self.servers:
            for other in self.servers:
                self.command(server, "CLUSTER MEET", "127.0.0.1", other.port)
        for master, replica in zip(masters, replicas, strict=True):
            wait_until(lambda: self.command(replica, "CLUSTER REPLICATE", self.id_of(master)))  # noqa: B023
        wait_until(self.is_well)
        self._give_up_after(PATIENT_MS)
        return self

    @contextmanager
    def outage(self, server: RedisServer, how: str) -> Iterator[None]:
        """A server is `killed` or `frozen`; at the end it is back, as a replica of the one in its place."""
        self._give_up_after(HASTY_MS)
        (server.kill if how == "killed" else server.freeze)()
        try:
            yield
        finally:
            (server.start if how == "killed" else server.thaw)()
            wait_until(self.is_well)
            self._give_up_after(PATIENT_MS)

    def slots_of(self, shard: int) -> range:
        """The slots of one shard, as long as none was moved."""
        return range(SLOTS * shard // SHARDS, SLOTS * (shard + 1) // SHARDS)

    def id_of(self, server: RedisServer) -> str:
        """The id of a server in its cluster."""
        return self._ids[server.port]

    def key_of(self, shard: int, name: str) -> str:
        """A key whose state under `name`, at the usual prefix, lies on that shard."""
        keys = (f"key{number}" for number in range(1_000))
        return next(key for key in keys if slot_of(name, key) in self.slots_of(shard))

    def owner_of(self, slot: int) -> RedisServer | None:
        """The owner of a slot; None while the servers that answer disagree."""
        seen = set(map(partial(_owner, slot), self.servers)) - {None}
        return next((server for server in self.servers if {server.port} == seen), None)

    def command(self, server: RedisServer, *words: Any) -> Any:
        """The reply of one unharmed server to a command."""
        with server.client(socket_timeout=PATIENCE_S) as client:
            return client.execute_command(*words)

    def is_well(self) -> bool:
        """Whether each server sees three masters with all slots, and a replica in step with each."""
        return all(map(self._sees_all, self.servers))

    def _give_up_after(self, silence_ms: int) -> None:
        for server in self.servers:
            self.command(server, "CONFIG", "SET", "cluster-node-timeout", silence_ms)

    def _sees_all(self, server: RedisServer) -> bool:
        with _client(server) as client:
            shards = client.execute_command("CLUSTER SLOTS")
            owned = sum(last - first + 1 for first, last, *_ in shards)
            if owned != SLOTS or any(len(nodes) != 2 for _, _, *nodes in shards):
                return False
            nodes = client.execute_command("CLUSTER NODES")
            if any("fail" in str(node["flags"]) for node in nodes.values()):
                return False
            if client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                return False
            role = client.info("replication")
            return bool(role["role"] == "master" or role["master_link_status"] == "up")

    def close(self) -> None:
        """Kill them all."""
        for server in self.servers:
            server.close()


@cache
def shared_cluster() -> ClusterServers:
    """One for all tests of this process; tests harm it only through `outage`, which heals it."""
    servers = ClusterServers()
    atexit.register(servers.close)
    return servers.start()


def slot_of(name: str, key: str, prefix: str = "shapekit") -> int:
    """The slot of a key's state."""
    return int(key_slot(f"{prefix}:{{{name}:{key}}}".encode()))


def wait_until(done: Callable[[], object]) -> None:
    """Ask again and again until it is so.

    An election without a result is held again after four seconds, and a server that has failed for long is
    seldom asked.
    """
    deadline = time.monotonic() + ELECTION_S
    while True:
        with suppress(redis.RedisError):
            if done():
                return
        assert time.monotonic() < deadline, f"{done} has not come true within {ELECTION_S} s"
        time.sleep(0.01)


def _owner(slot: int, server: RedisServer) -> int | None:
    try:
        with _client(server) as client:
            shards = client.execute_command("CLUSTER SLOTS")
    except (redis.ConnectionError, redis.TimeoutError):
        return None
    return next(int(master[1]) for first, last, master, *_ in shards if first <= slot <= last)


def _client(server: RedisServer) -> redis.Redis:
    return server.client(retry=Retry(NoBackoff(), 0), socket_timeout=0.5)


def _text(reply: bytes | str) -> str:
    return reply if isinstance(reply, str) else reply.decode()
