"""Whether this machine stalls those who work on it: `python pulse.py PID …`, from a line of input to its end.

Says at last, as JSON, when which stall was seen: pairs of an instant on the monotonic clock, and seconds.

Its own lateness is a poor witness: who mostly sleeps is served before those who are busy. So it looks at
what the system has counted: for how long each of their threads was ready to run and was not let. Where no
system counts that, and where the whole machine is stopped, its own lateness has to do.
"""

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

NAP_S = 0.01
WORTH_S = 0.005
LOOKS = 20
"""Between two searches for new threads."""


class Witness:
    """The threads of some processes, and for how long each has been kept waiting so far."""

    def __init__(self, processes):
        self.folders = [Path(f"/proc/{process}/task") for process in processes]
        self.files = {}
        self.waited = {}

    def look(self):
        """The longest time any thread was kept waiting since the last look."""
        longest = 0.0
        for thread, file in list(self.files.items()):
            try:
                waited = int(os.pread(file, 64, 0).split()[1]) / 1e9
            except (OSError, IndexError):
                os.close(self.files.pop(thread))
                continue
            longest = max(longest, waited - self.waited.get(thread, waited))
            self.waited[thread] = waited
        return longest

    def find(self):
        """Threads come and go."""
        for folder in self.folders:
            with suppress(OSError):
                for thread in folder.iterdir():
                    if thread not in self.files:
                        self.files[thread] = os.open(thread / "schedstat", os.O_RDONLY)


if __name__ == "__main__":
    witness = Witness(sys.argv[1:])
    print("ready", flush=True)
    over = threading.Event()
    sys.stdin.readline()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    stalls = []
    looks = 0
    while not over.is_set():
        if looks % LOOKS == 0:
            witness.find()
        looks += 1
        start = time.monotonic()
        time.sleep(NAP_S)
        late = time.monotonic() - start - NAP_S
        stalled = max(late, witness.look())
        if stalled > WORTH_S:
            stalls.append((time.monotonic(), stalled))
    json.dump(stalls, sys.stdout)
