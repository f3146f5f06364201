"""A server on loopback whose answers take their time to end, and that counts how many are under way."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE_S = 20.0


class Bodies:
    """`/held` ends when it is let go, `/crowd` when enough are under way together, `/broken` never."""

    def __init__(self, most: int = 0, total: int = 0) -> None:
        self.most_wanted = most
        self.total = total
        self.inside = self.most = self.arrived = 0
        self.changed = threading.Condition()
        self._let_go = False
        bodies = self

        class Handler(_Handler):
            server_bodies = bodies

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.let_go()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)

    def let_go(self) -> None:
        """End what is held, now and from now on."""
        with self.changed:
            self._let_go = True
            self.changed.notify_all()

    def hold(self) -> None:
        """Hold from now on."""
        self._let_go = False

    def begin(self) -> None:
        with self.changed:
            self.arrived += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.changed.notify_all()

    def wait_until_let_go(self) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self._let_go, PATIENCE_S)

    def wait_until_crowded(self) -> None:
        """Until as many are under way as there are to be; or all have come, and there will be no more."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: self.most >= self.most_wanted or self.arrived >= self.total, PATIENCE_S
            )

    def wait_for(self, inside: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.inside == inside, PATIENCE_S), self.inside

    def end(self) -> None:
        with self.changed:
            self.inside -= 1
            self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_bodies: Bodies

    def log_message(self, *_: object) -> None:
        """The log is not read."""

    def do_GET(self) -> None:
        bodies = self.server_bodies
        bodies.begin()
        path = self.path
        try:
            if path == "/empty":
                bodies.end()
                self.send_response(204)
                self.end_headers()
            elif path == "/broken":
                self.send_response(200)
                self.send_header("Content-Length", "100")
                self.end_headers()
                self.wfile.write(b"x" * 10)
                bodies.end()
                self.close_connection = True
            elif path == "/moved":
                bodies.end()
                self.send_response(302)
                self.send_header("Location", "/plain")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"no")
            elif path == "/plain":
                bodies.end()
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")
            else:
                self._slowly(bodies.wait_until_crowded if path == "/crowd" else bodies.wait_until_let_go)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _slowly(self, wait: object) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nbegin\r\n")
        self.wfile.flush()
        wait()  # type: ignore[operator]
        # Counted before the end is sent: no client can learn of the end before it is counted.
        self.server_bodies.end()
        self.wfile.write(b"3\r\nend\r\n0\r\n\r\n")
