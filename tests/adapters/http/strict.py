"""A strict server in a process of its own: `python strict.py CALLS HOLD_S`. Prints its URL, then its log.

Admits 50 requests in any half-open second. After CALLS of them it admits only 25, and asks refused clients to
come back after HOLD_S. When one has come back, it prints its log, and goes on until its input ends.

The collector of a program with a large heap stops everything in it for tens of ms: a server in the process of
the tests would not run meanwhile, and would see requests together that came one by one.
"""

import gc
import json
import sys
import threading

from server import PATIENCE_S, Arrival, Limit, Reply, Server

MOST = 50


class Changing:
    """A limit that is halved after so many calls."""

    def __init__(self, calls: int, hold_s: float) -> None:
        self.over = threading.Event()
        self._left = calls
        self._hold_s = hold_s
        self.refused_at: float | None = None
        self._limit = Limit(MOST)

    def __call__(self, arrival: Arrival) -> Reply:
        if arrival.path != "/warm":
            self._left -= 1
        if self._left == -1:
            self._limit.most //= 2
            self._limit.headers = {"Retry_After": f"{self._hold_s:g}"}
        reply = self._limit(arrival)
        if self._left < 0:
            if self.refused_at is None and reply.status == 429:
                self.refused_at = arrival.at
            if self.refused_at is not None and arrival.at > self.refused_at + self._hold_s / 2:
                self.over.set()
        return reply


if __name__ == "__main__":
    calls, hold_s = sys.argv[1:]
    changing = Changing(int(calls), float(hold_s))
    server = Server(changing).start()
    gc.freeze()
    print(server.url, flush=True)
    assert changing.over.wait(2 * PATIENCE_S)
    print(json.dumps(server.log), flush=True)
    sys.stdin.readline()
    server.close()
