"""RedisStore with clients that a Sentinel has made: a master that fails, and one that was demoted."""

import subprocess
from contextlib import asynccontextmanager

import anyio
import pytest
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from shapekit import GCRA, Gate, RedisStore, Shaper, StoreUnavailableError
from shapekit.rate import SECOND_US

from ..redis_cluster import wait_until
from ..redis_server import RedisServer, redis_program

TIMEOUT_S = 2.0
PATIENCE_S = 30.0
HASTY_MS = 2_000
"""How long a master may be silent before it is replaced: a busy machine is not to look like an outage."""
REPLICA = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")


class Watched:
    """Two servers, a replica of the other each in turn, and the Sentinel that watches them."""

    def __init__(self, folder):
        self.servers = [RedisServer(*REPLICA) for _ in range(2)]
        settings = folder / "sentinel.conf"
        settings.touch()
        self.sentinel = SentinelServer(settings)

    def start(self):
        for server in self.servers:
            server.start()
        master, replica = self.servers
        with replica.client() as client:
            client.replicaof("127.0.0.1", master.port)
        self.sentinel.start()
        self.watch(master)
        wait_until(self.is_well)
        return self

    def restore(self, killed):
        """Start it again, as a replica of the one that took its place. A Sentinel would take ten seconds."""
        new = self.master
        assert new is not killed
        killed.start()
        with killed.client() as client:
            client.replicaof("127.0.0.1", new.port)
        self.watch(new)
        wait_until(self.is_well)

    def swap(self):
        """Let the two change places as a Sentinel does, which would also cut connections; the new master."""
        old = self.master
        new = next(server for server in self.servers if server is not old)
        with self.sentinel.client() as client:
            # One that only just began to watch does not step in at once.
            client.sentinel_remove("main")
            client.sentinel_monitor("main", "127.0.0.1", old.port, 1)
        with new.client() as client:
            client.replicaof("NO", "ONE")
        with old.client() as client:
            client.replicaof("127.0.0.1", new.port)
        return new

    def watch(self, master):
        """Set the master that the Sentinel watches."""
        with self.sentinel.client() as client:
            if client.sentinel_masters():
                client.sentinel_remove("main")
            client.sentinel_monitor("main", "127.0.0.1", master.port, 1)
            client.sentinel_set("main", "down-after-milliseconds", HASTY_MS)
            client.sentinel_set("main", "failover-timeout", 3_000)

    @property
    def master(self):
        """As the Sentinel has it."""
        with self.sentinel.client() as client:
            _, port = client.sentinel_get_master_addr_by_name("main")
        return next(server for server in self.servers if server.port == port)

    def is_well(self):
        """Whether there is a master with a replica in step, and the Sentinel knows both."""
        with self.sentinel.client() as client:
            state = client.sentinel_master("main")
            replicas = client.sentinel_slaves("main")
        if state["flags"] != "master" or [each["flags"] for each in replicas] != ["slave"]:
            return False
        roles = sorted(self._role(server) for server in self.servers)
        return roles == [("master", None), ("slave", "up")]

    def _role(self, server):
        with server.client() as client:
            info = client.info("replication")
        return info["role"], info.get("master_link_status")

    def in_step(self):
        """Wait until the replica has all that the master has."""
        with self.master.client() as client:
            wait_until(lambda: client.wait(1, 100) == 1)

    def close(self):
        for server in (*self.servers, self.sentinel):
            server.close()


class SentinelServer(RedisServer):
    """The same program, watching."""

    def __init__(self, settings):
        super().__init__()
        self._settings = settings

    def launch(self, *options):
        self._process = subprocess.Popen(
            [redis_program(), self._settings, "--sentinel", "--port", str(self.port), *options],
            cwd=self._settings.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    watched = Watched(tmp_path_factory.mktemp("sentinel"))
    try:
        yield watched.start()
    finally:
        watched.close()


@asynccontextmanager
async def store_on(watched, backend):
    """A store for the callers of an event loop, or for synchronous ones, as the Sentinel has it."""
    where = [("127.0.0.1", watched.sentinel.port)]
    sentinel = Sentinel(where, socket_timeout=TIMEOUT_S)
    asentinel = AsyncSentinel(where, socket_timeout=TIMEOUT_S) if backend == "asyncio" else None
    client = sentinel.master_for("main", retry=Retry(NoBackoff(), 0))
    aclient = asentinel.master_for("main") if asentinel else None
    try:
        yield RedisStore(client, aclient=aclient)
    finally:
        client.close()
        client.connection_pool.disconnect()
        for each in sentinel.sentinels:
            each.close()
        if asentinel is not None:
            await aclient.aclose()
            await aclient.connection_pool.disconnect()
            for each in asentinel.sentinels:
                await each.aclose()


@pytest.fixture
def name(request):
    return request.node.name


@pytest.mark.anyio
async def test_a_master_that_is_killed_is_replaced(watched, name, anyio_backend):
    """Calls raise until the Sentinel has promoted the replica, which knows what was admitted."""
    async with store_on(watched, anyio_backend) as store:
        spent = Gate(GCRA("1/h"), name=name, store=store)
        shaper = Shaper("10/h", name=f"{name}-shaper", store=store)
        assert await spent.acheck()
        assert spent.check().allowed is False
        tail = [await shaper.areserve() for _ in range(3)][-1].grant.departs_at_us
        watched.in_step()
        master = watched.master
        master.kill()
        with pytest.raises(StoreUnavailableError):
            await spent.acheck()
        with pytest.raises(StoreUnavailableError):
            spent.check()
        with anyio.fail_after(PATIENCE_S):
            decision = await _served(spent)
        assert not decision
        assert spent.check().allowed is False
        assert (await shaper.areserve()).grant.departs_at_us == tail + 360 * SECOND_US
        watched.restore(master)


async def _served(gate):
    while True:
        try:
            return await gate.acheck()
        except StoreUnavailableError:
            await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_a_reply_of_a_demoted_master_is_no_decision(watched, name, anyio_backend):
    """It refuses to write: the call goes on to the new master, once the Sentinel knows it."""
    async with store_on(watched, anyio_backend) as store:
        gate = Gate(GCRA("1/h", 6), name=name, store=store)
        assert await gate.acheck()
        assert gate.check().current == 2
        watched.in_step()
        new = watched.swap()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="Redis"):
                await gate.acheck()
            with pytest.raises(StoreUnavailableError, match="Redis"):
                gate.check()
        watched.watch(new)
        assert (await gate.acheck()).current == 3
        assert gate.check().current == 4
        wait_until(watched.is_well)
        watched.in_step()
        # This time the Sentinel knows the new master before the callers do, whose connections stay.
        watched.watch(watched.swap())
        assert (await gate.acheck()).current == 5
        assert gate.check().current == 6
        assert not await gate.acheck()
        wait_until(watched.is_well)
