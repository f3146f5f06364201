"""The demo's API: answers on loopback, allows so many calls in any second, and says 429 to the others.

It keeps the log that all of the demo's numbers come from: a line on its standard output for each call.
It runs in a process of its own, tells its port first, and ends when its standard input does.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from shapekit.cli.demo_log import ASKED_AT, WORKER, Call

LIMIT = 50
WINDOW_NS = 1_000_000_000
WORK_S = 0.05
"""How long an accepted call takes, as it would elsewhere."""


class Window:
    """At most `LIMIT` accepted calls in any second, exactly: what many APIs promise to enforce."""

    def __init__(self) -> None:
        self._accepted: deque[int] = deque()

    def admits(self, now_ns: int) -> bool:
        """Whether a call that arrives now is accepted; one that is refused does not count."""
        accepted = self._accepted
        while accepted and accepted[0] <= now_ns - WINDOW_NS:
            accepted.popleft()
        if len(accepted) >= LIMIT:
            return False
        accepted.append(now_ns)
        return True


class Handler(BaseHTTPRequestHandler):
    """One connection of a worker, which is kept open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    turn = threading.Lock()
    window = Window()

    def do_GET(self) -> None:
        with self.turn:
            # The order of the log is the order of the decisions.
            arrived_ns = time.monotonic_ns()
            accepted = self.window.admits(arrived_ns)
            asked_ns = int(self.headers.get(ASKED_AT, arrived_ns))
            call = Call(arrived_ns, asked_ns, accepted, int(self.headers.get(WORKER, 0)))
            sys.stdout.write(call.line())
            sys.stdout.flush()
        if accepted:
            time.sleep(WORK_S)
        self.send_response(200 if accepted else 429)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base names it so
        """The log is ours."""


class Server(ThreadingHTTPServer):
    """Lets go of its connections when it ends."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A worker that ends in the middle of a call is no news."""


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the demo's to hear, and it tells us
    with Server(("127.0.0.1", 0), Handler) as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
