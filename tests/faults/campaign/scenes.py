"""Where a cell of the campaign takes place, and everything that can happen there."""

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import redis

from ...redis_server import RedisServer
from ..faults import FAULTS
from ..proxy import Proxy

PATIENCE_S = 20.0
OFTEN_S = 0.1
"""The pause between two blows of a fault that consists of many."""
SPIKES_S = (0.05, 0.2, 0.6)
"""Some within the patience of a store, some above it."""
LAG_S = 0.3
"""By how much the replica is behind that takes the master's place."""


class Scene:
    """A Redis server, a proxy before it for each caller where the fault needs one, and the callers."""

    def __init__(self, fault, callers):
        self.server = RedisServer(*fault.options).start()
        master = ("--replicaof", "127.0.0.1", str(self.server.port))
        self.replica = RedisServer(*master) if fault.failover else None
        if self.replica is not None:
            self.replica.start()
        self.proxies = [Proxy(self.server.port) for _ in range(callers if fault.on_the_wire else 0)]
        self.callers = []
        self.forgotten = 0
        """How often the server has lost all keys."""

    @property
    def servers(self):
        return [self.server, *filter(None, [self.replica])]

    def url(self, number):
        """Where a caller finds its store."""
        return self.proxies[number].url() if self.proxies else self.server.url

    def command(self, *words):
        with self.server.client() as client:
            return client.execute_command(*words)

    @contextmanager
    def often(self, blow):
        """Strike again and again, as long as the block takes."""
        over = threading.Event()

        def strike():
            for number in range(10_000):
                if over.is_set():
                    return
                blow(number)
                over.wait(OFTEN_S)

        thread = threading.Thread(target=strike)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(PATIENCE_S)

    def close(self):
        for proxy in self.proxies:
            proxy.close()
        for server in self.servers:
            server.thaw()
            server.close()


class Trouble(NamedTuple):
    """A fault: a context that harms when it is entered, and heals when it is left."""

    happen: Callable[[Scene], Any]
    options: tuple[str, ...] = ()
    on_the_wire: bool = False
    failover: bool = False


def _served(name):
    """A fault of a server, from the list that the other tests use."""
    fault = FAULTS[name]

    @contextmanager
    def happen(scene):
        fault.harm(scene.server)
        try:
            yield
        finally:
            fault.heal(scene.server)
            scene.forgotten += fault.forgets

    return happen


@contextmanager
def _restarted(scene):
    scene.server.kill()
    try:
        yield
    finally:
        scene.server.start()


@contextmanager
def _resets(scene):
    def reset(number):
        proxy = scene.proxies[number % len(scene.proxies)]
        proxy.refuse()
        proxy.accept()

    with scene.often(reset):
        yield


@contextmanager
def _lost_replies(scene):
    def lose(number):
        proxy = scene.proxies[number % len(scene.proxies)]
        proxy.strike("swallow" if number // len(scene.proxies) % 2 else "drop")

    with scene.often(lose):
        yield
    for proxy in scene.proxies:
        proxy.spare()


@contextmanager
def _spikes(scene):
    def delay(number):
        proxy = scene.proxies[number % len(scene.proxies)]
        proxy.strike("hold")
        if proxy.held.wait(OFTEN_S):
            time.sleep(SPIKES_S[number % len(SPIKES_S)])
        # Where no call has come, the next one is let through.
        proxy.release()

    with scene.often(delay):
        yield
    for proxy in scene.proxies:
        proxy.spare()


@contextmanager
def _flushed_scripts(scene):
    with scene.often(lambda _: scene.command("SCRIPT", "FLUSH")):
        yield


@contextmanager
def _flushed_keys(scene):
    scene.command("FLUSHALL")
    scene.forgotten += 1
    yield


@contextmanager
def _evicted(scene):
    scene.command("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    # At once, so that no call is refused for want of memory: that is another fault.
    with scene.server.client() as client, client.pipeline() as both:
        both.config_set("maxmemory", 1)
        both.config_set("maxmemory", 0)
        both.execute()
    assert scene.command("INFO", "stats")["evicted_keys"] > 0
    scene.forgotten += 1
    yield


@contextmanager
def _failover(scene):
    with scene.replica.client() as client:
        _until(lambda: client.info("replication")["master_link_status"] == "up")
        client.execute_command("REPLICAOF", "NO", "ONE")
        time.sleep(LAG_S)
    scene.server.kill()
    try:
        yield
    finally:
        for proxy in scene.proxies:
            proxy.lead_to(scene.replica.port)


@contextmanager
def _partition(scene):
    scene.proxies[0].refuse()
    try:
        yield
    finally:
        scene.proxies[0].accept()


@contextmanager
def _killed_caller(scene):
    scene.callers[0].kill()
    yield


KEPT = ("--appendonly", "yes", "--appendfsync", "no")
"""All that was answered is with the system, which survives its processes. (With `everysec`, what was written
during a slow fsync is not.)"""

TROUBLES = {
    "killed, restarted empty": Trouble(_served("killed")),
    "killed, restarted with its data": Trouble(_restarted, KEPT),
    "frozen (SIGSTOP)": Trouble(_served("frozen")),
    "CLIENT PAUSE": Trouble(_served("paused")),
    "read-only": Trouble(_served("read-only")),
    "out of memory": Trouble(_served("out of memory")),
    "connection resets": Trouble(_resets, on_the_wire=True),
    "lost replies": Trouble(_lost_replies, on_the_wire=True),
    "latency spikes": Trouble(_spikes, on_the_wire=True),
    "SCRIPT FLUSH": Trouble(_flushed_scripts),
    "FLUSHALL": Trouble(_flushed_keys),
    "keys evicted": Trouble(_evicted),
    "failover to a replica": Trouble(_failover, on_the_wire=True, failover=True),
    "one worker cut off": Trouble(_partition, on_the_wire=True),
    "one worker killed -9": Trouble(_killed_caller),
}
"""Each by its name, as the table shows it."""


def _until(happened):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(redis.ConnectionError):
            if happened():
                return
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)
