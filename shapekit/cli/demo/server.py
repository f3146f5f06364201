"""The demo's API and its log: it allows so many calls in any second, and says 429 to the others.

The log is the only source of the demo's figures. Times are those of the host's monotonic clock, which all
processes share.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

ASKED_AT = "X-Asked-At"
"""The header in which a worker says since when it has wanted this call."""
SECOND_NS = 1_000_000_000
LIMIT = 50
WORK_S = 0.05
"""How long an accepted call takes, as it would elsewhere."""


class Call(NamedTuple):
    """A call that arrived at the API; an accepted retry was asked for at its first attempt."""

    arrived_ns: int
    asked_ns: int
    accepted: bool


class Summary(NamedTuple):
    """What the log says of one run; waits, in seconds, end when the call arrives and is accepted."""

    calls: int
    accepted: int
    refused: int
    rate: float
    """Accepted calls a second."""
    worst_second: int
    """The most calls that arrived in any one second."""
    wait_p50: float
    wait_p99: float


class Log(NamedTuple):
    """The calls of one run, in the order in which they arrived, and how long it has lasted so far."""

    calls: Sequence[Call]
    began_ns: int
    lasted_ns: int

    def columns(self, count: int) -> list[tuple[int, int]]:
        """How many were accepted and refused in each of the first tenths of a second."""
        columns = [[0, 0] for _ in range(count)]
        for call in self.calls:
            place = (call.arrived_ns - self.began_ns) * 10 // SECOND_NS
            if 0 <= place < count:
                columns[place][not call.accepted] += 1
        return [(accepted, refused) for accepted, refused in columns]

    def summary(self) -> Summary:
        """The figures so far."""
        waits = sorted(call.arrived_ns - call.asked_ns for call in self.calls if call.accepted)
        recent: deque[int] = deque()
        worst = 0
        for call in self.calls:
            recent.append(call.arrived_ns)
            while recent[0] <= call.arrived_ns - SECOND_NS:
                recent.popleft()
            worst = max(worst, len(recent))
        rate = len(waits) * SECOND_NS / max(self.lasted_ns, 1)
        refused = len(self.calls) - len(waits)
        quantiles = (_quantile(waits, part) / SECOND_NS for part in (0.5, 0.99))
        return Summary(len(self.calls), len(waits), refused, rate, worst, *quantiles)


def _quantile(ordered: Sequence[int], part: float) -> int:
    """The least value that at least this part of all does not exceed."""
    return ordered[math.ceil(part * len(ordered)) - 1] if ordered else 0


class Window:
    """At most `LIMIT` accepted calls in any second, exactly: what many APIs promise to enforce."""

    def __init__(self) -> None:
        self._accepted: deque[int] = deque(maxlen=LIMIT)

    def admits(self, now_ns: int) -> bool:
        """Whether a call that arrives now is accepted; one that is refused does not count."""
        is_full = len(self._accepted) == LIMIT and self._accepted[0] > now_ns - SECOND_NS
        if not is_full:
            self._accepted.append(now_ns)
        return not is_full


class Api(ThreadingHTTPServer):
    """Answers on a free port of the loopback, on threads of this process."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._window = Window()
        self._turn = threading.Lock()
        super().__init__(("127.0.0.1", 0), partial(_Handler, self.answer))
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, asked_ns: int) -> bool:
        """Log a call that arrives now, and say whether it is accepted."""
        with self._turn:  # the order of the log is the order of the decisions
            now_ns = time.monotonic_ns()
            accepted = self._window.admits(now_ns)
            self.calls.append(Call(now_ns, asked_ns, accepted))
        return accepted

    def close(self) -> None:
        """Answer no more."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A worker that ends in the middle of a call is no news."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a worker, which is kept open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, answer: Any, *args: Any) -> None:
        self._answer = answer
        super().__init__(*args)

    def do_GET(self) -> None:
        accepted = self._answer(int(self.headers[ASKED_AT]))
        if accepted:
            time.sleep(WORK_S)
        self.send_response(200 if accepted else 429)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base names it so
        """The log is ours."""
