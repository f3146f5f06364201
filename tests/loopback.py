"""HTTP servers on loopback, each request in a thread of its own: a subclass makes the answers."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATIENCE_S = 20.0


class LoopbackServer:
    """Answers each POST with the result of `answer`."""

    path = ""
    """The path of its URL."""

    def __init__(self):
        self.lock = threading.Lock()
        """A lock for state that simultaneous answers change."""
        self.gate = threading.Event()
        """Answers are sent while it is set."""
        self.gate.set()
        self.came = threading.Semaphore(0)
        """Released by each request that has arrived."""
        self._server = _Listening(("127.0.0.1", 0), _Handler)
        self._server.answering = self
        self.url = f"http://127.0.0.1:{self._server.server_port}{self.path}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def answer(self, headers, body):
        """The status, the headers and the body of an answer."""
        raise NotImplementedError

    def send(self, handler, body):
        """Send the body of an answer."""
        handler.wfile.write(body)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        ours = self.server.answering
        body_ = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, headers, body = ours.answer(dict(self.headers), body_)
        ours.came.release()
        ours.gate.wait(PATIENCE_S)
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        ours.send(self, body)

    def log_message(self, *_):
        """The log is not read."""


class _Listening(ThreadingHTTPServer):
    request_queue_size = 128  # all callers of a test may connect at once

    def handle_error(self, *arguments):
        # Clients that close in the middle of an answer, or are killed, are part of the tests.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*arguments)
