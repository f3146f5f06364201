"""A witness of stalls: when the machine kept some processes from running, and for how long.

    with watched(server.pid, *workers) as witness:
        ...
    assert witness.stalls.undone(planned, happened) < planned + 0.02

Its own lateness says little: a process that mostly sleeps is served before busy ones. So another process,
`python witness.py PID …`, looks at the counts of the system: for how long each of their threads was ready to
run and did not run, which of them wait for the disk, and for how long the host has let no process run here.
Where no system counts that, and where the whole machine is stopped, its own lateness has to do.
"""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 20.0
NAP_S = 0.01
SEARCH = 5
"""Looks between two searches for new threads."""
WORTH_S = 0.001
"""Shorter stalls are not reported: timers are no better."""
NEAR_S = 0.05
LOOKED_AT = ("schedstat", "stat")
"""Counts of each thread: for how long it was not let run, and whether it waits for the disk."""


class Stall(NamedTuple):
    """A stall seen at one look: some threads were kept from running since the one before."""

    since: float
    at: float
    longest: float
    """How long one of them was, in seconds."""
    together: float
    """How long all threads that wait for one another may have waited: in one look, no longer than it."""

    @classmethod
    def of(cls, since, at, waits):
        longest = max(waits)
        return cls(since, at, longest, max(longest, min(sum(waits), at - since)))


class Stalls:
    """Everything that was seen; instants are those of the monotonic clock."""

    def __init__(self, seen):
        self._seen = [Stall(*stall) for stall in seen]

    def within(self, start, end):
        """How much later something may be because of the stalls between two instants."""
        return sum(stall.together for stall in self._overlapping(start, end))

    def longest(self, start, end):
        """For how long some thread was kept from running, between two instants."""
        return max((stall.longest for stall in self._overlapping(start, end)), default=0.0)

    def undone(self, planned, happened):
        """When something would have happened without the stalls since it was due."""
        return max(planned, happened - self.within(planned, happened))

    def around(self, instant):
        """The longest stall that may have changed what happened at an instant; 0 if there was none."""
        near = self._overlapping(instant - NEAR_S, instant + NEAR_S)
        return max((stall.longest for stall in near), default=0.0)

    def _overlapping(self, start, end):
        return [stall for stall in self._seen if stall.since <= end and stall.at >= start]


class Witness:
    """The threads of some processes, and for how long each has been kept waiting so far."""

    def __init__(self, processes, proc="/proc"):
        self._proc = Path(proc)
        self._processes = processes
        self._files = {}
        self._waited = {}
        self._looked_at = time.monotonic()
        self._stolen = self._stolen_s()
        self.find()
        self.look()

    def look(self):
        """For how long each of the threads that were kept waiting since the last look was, in seconds."""
        stolen, before = self._stolen_s(), self._stolen
        now, last = time.monotonic(), self._looked_at
        self._stolen, self._looked_at = stolen, now
        waits = [stolen - before]
        for thread, files in list(self._files.items()):
            try:
                waited = int(_read(files[0]).split()[1]) / 1e9
                # Behind the name, which may contain anything.
                is_at_disk = _read(files[1]).rpartition(b")")[2].split()[0] == b"D"
            except (OSError, IndexError):
                _close(self._files.pop(thread))
                continue
            waited_before, was_at_disk = self._waited.get(thread, (0.0, False))
            waits.append(waited - waited_before + (now - last if is_at_disk and was_at_disk else 0.0))
            self._waited[thread] = waited, is_at_disk
        return [wait for wait in waits if wait > 0]

    def find(self):
        """Threads come and go."""
        for process in self._processes:
            with suppress(OSError):
                for thread in (self._proc / str(process) / "task").iterdir():
                    if thread not in self._files:
                        self._files[thread] = [(thread / name).open("rb", buffering=0) for name in LOOKED_AT]

    def close(self):
        """Look no more."""
        for files in self._files.values():
            _close(files)
        self._files.clear()

    def _stolen_s(self):
        """For how long all processors together were given to other machines, where that is counted."""
        try:
            with (self._proc / "stat").open() as file:
                return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError):
            return 0.0


def _read(file):
    return os.pread(file.fileno(), 256, 0)


def _close(files):
    for file in files:
        file.close()


class Watched:
    """Processes that a witness looks at."""

    stalls = Stalls([])
    """All stalls seen, when it is over."""


@contextmanager
def watched(*processes):
    """Look at these processes and their children, as long as the block takes."""
    watch = Watched()
    command = [sys.executable, __file__, *map(str, with_children(processes))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as witness:
        try:
            assert witness.stdout.readline() == "ready\n"
            yield watch
            watch.stalls = Stalls(json.loads(witness.communicate(timeout=PATIENCE_S)[0]))
        finally:
            witness.kill()


class Stopwatch:
    """The duration of a block, in seconds, without the time in which this process was kept from running.

    It is as cheap as two looks: for blocks that only have to end within some time.
    """

    def __init__(self, threads="/proc/self/task"):
        self._threads = Path(threads)

    def __enter__(self):
        self._waited, self._start = self._waits(), time.monotonic()
        return self

    def __exit__(self, *_):
        took, waited = time.monotonic() - self._start, self._waits()
        self.took = took - sum(waited[thread] - self._waited.get(thread, 0) for thread in waited)

    def _waits(self):
        """For how long each thread was ready to run and did not run."""
        waits = {}
        for thread in self._threads.glob("*"):
            with suppress(OSError):
                waits[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        return waits


def with_children(processes, proc="/proc"):
    """These processes, and all that descend from them, as far as the system shows."""
    children = {}
    for folder in Path(proc).glob("[0-9]*"):
        with suppress(OSError):
            # Behind the name, which may contain anything, stand the state and the parent.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = list(processes)
    for process in found:
        found += children.get(process, ())
    return found


def _watch(processes):
    """Look until the standard input ends, and answer with all stalls seen."""
    witness = Witness(processes)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print("ready", flush=True)
    seen = []
    looks = 0
    since = time.monotonic()
    while not over.is_set():
        looks += 1
        if looks % SEARCH == 0:
            witness.find()
        start = time.monotonic()
        time.sleep(NAP_S)
        late = time.monotonic() - start - NAP_S
        waits = [late, *witness.look()]
        at = time.monotonic()
        if max(waits) > WORTH_S:
            seen.append(Stall.of(since, at, waits))
        since = at
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    _watch(sys.argv[1:])
