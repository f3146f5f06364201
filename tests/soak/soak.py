"""The soak: two processes under load for minutes, and whether anything grows: `python -m tests.soak.soak`."""

import argparse
import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

from shapekit.stores.sqlite import _SPAN_BITS

from ..redis_server import RedisServer
from .judge import made, population, speed, trend

PATIENCE_S = 60.0
PROCESSES = 2
WARM = 1 / 3
"""The first part of a run, which does not count."""
SAMPLES = 45
HELD = ("RSS, MB", "blocks", "objects", "threads", "tasks", "file descriptors")
LIVING = {"Redis keys": ("redis", "resilient"), "SQLite rows": ("sqlite",)}
"""What comes and goes, and the calls with which it comes. A file or a server keeps all space that it has ever
used, so their sizes are reported and not judged."""
CUT_S = 3.0
"""Between two times at which all of Redis's connections are cut."""


class Process:
    """One process, and the samples that it prints."""

    def __init__(self, number, **options):
        command = [sys.executable, str(Path(__file__).with_name("load.py"))]
        what = json.dumps({"number": number, **options})
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([*command, what], **pipes)
        self.lines = {"before": [], "sample": [], "after": [], "done": []}
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            word, value = json.loads(line)
            self.lines[word].append(value)

    @property
    def runs(self):
        return self._process.poll() is None

    def end(self):
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_S) == 0
        self._reader.join(PATIENCE_S)

    def close(self):
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._process.stdin.close()
        self._reader.join(PATIENCE_S)
        self._process.stdout.close()


def soak(every, count):
    """`count` samples of what the processes and the stores hold, one in `every` seconds."""
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        client = stack.enter_context(server.client())
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "limits.db"
        options = {"url": server.url, "path": str(path), "every": every}
        processes = [stack.enter_context(closing(Process(n, **options))) for n in range(PROCESSES)]
        stores = []
        cut_at = time.monotonic()
        while min(len(process.lines["sample"]) for process in processes) < count:
            time.sleep(every)
            assert all(process.runs for process in processes), "a process has ended"
            if any(not process.lines["sample"] for process in processes):
                continue
            stores.append(_looked_at(client, path))
            if time.monotonic() - cut_at > CUT_S:
                cut_at = time.monotonic()
                client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        for process in processes:
            process.end()
        samples = {f"process {n}": process.lines for n, process in enumerate(processes)}
    return samples, stores


def _looked_at(client, path):
    """What the stores hold. Redis counts idle connections of a client that was cut until it notices the cut.

    Idle rows of SQLite are swept by the 17 s in which they become idle, so that all rows together say where
    in such a span one looks: those in use are counted, and those that should have gone already.
    """
    now_us = time.time_ns() // 1_000
    with closing(sqlite3.connect(path)) as file:

        def count(table, of="1"):
            return file.execute(f"SELECT count(*) FROM {table} WHERE {of}").fetchone()[0]

        rows = count("records", f"expires_us > {now_us}")
        overdue = count("records", f"sweep_at < {now_us >> _SPAN_BITS}")
        lasting = count("names") + count("programs") + count("host")
        # The file itself grows only when the log is written back.
        pages, size = (file.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
    return {
        "Redis keys": client.dbsize(),
        "Redis clients": client.info("clients")["connected_clients"],
        "Redis MB": round(client.info("memory")["used_memory"] / 1e6, 3),
        "SQLite rows": rows,
        "SQLite rows overdue": overdue,
        "SQLite rows that last": lasting,
        "SQLite MB": round(pages * size / 1e6, 3),
    }


def report(outputs, stores):
    """A line for each figure, and the lines of those that grow."""
    lines, growing = [], []

    def judge(source, trend):
        lines.append(f"{source}, {trend}")
        if trend.grows:
            growing.append(lines[-1])

    warm = {source: _warm(each["sample"]) for source, each in outputs.items()}
    for source, samples in warm.items():
        for what in HELD:
            judge(source, trend(what, samples))
    looks = _warm(stores)
    for what in ("Redis clients", "SQLite rows overdue", "SQLite rows that last"):
        judge("stores", trend(what, looks))
    for what, kinds in LIVING.items():
        times = [speed(samples, kinds) for samples in warm.values()]
        calls = sum(made(samples, kinds) for samples in warm.values())
        judge("stores", population(what, looks, sum(times) / len(times), calls))
    lines += [f"stores, {trend(what, looks)}" for what in ("Redis MB", "SQLite MB")]
    for source, each in outputs.items():
        lines.append(f"{source}, calls and failures: {each['done'][0]}")
        (before,), (after,) = each["before"], each["after"]
        for what in ("threads", "tasks", "file descriptors"):
            lines.append(f"{source}, {what} before and after: {before[what]}, {after[what]}")
            # One more is the thread that waits for the end.
            if after[what] > before[what] + 1:
                growing.append(lines[-1])
    return lines, growing


def _warm(samples):
    return samples[round(len(samples) * WARM) :]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.soak.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    # A process that is terminated ends its servers, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    lines, growing = report(*soak(options.seconds / SAMPLES, SAMPLES))
    print(*lines, sep="\n")
    print("grows:" if growing else "nothing grows", *growing, sep="\n")
    return 1 if growing else 0


if __name__ == "__main__":
    sys.exit(main())
