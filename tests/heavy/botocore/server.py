"""A loopback server that speaks SQS's protocol, and throttles as AWS does: by a token bucket."""

import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

OK = 200, {}, {}
THROTTLED = 400, {}, {"__type": "com.amazonaws.sqs#ThrottlingException", "message": "Rate exceeded"}


def failing(code, status=400, **headers):
    """An answer with an error code in its body."""
    return status, headers, {"__type": f"com.amazonaws.sqs#{code}", "message": "no"}


class Arrival(NamedTuple):
    at: float
    headers: dict
    status: int


class Server:
    """Answers what `answers` holds, then by its bucket if it has a rate: 200 or a ThrottlingException."""

    def __init__(self, rate=None, burst=1):
        self.answers = deque()
        self.arrivals = []
        self.gate = threading.Event()
        """Answers are given while it is set."""
        self.gate.set()
        self.came = threading.Semaphore(0)
        self._rate, self._burst = rate, burst
        self._tokens, self._seen = burst, time.monotonic()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, headers, told = outer._answer(dict(self.headers))
                body = json.dumps(told).encode()
                self.send_response(status)
                sent = {"Content-Type": "application/x-amz-json-1.0", "Content-Length": len(body), **headers}
                for name, value in sent.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        class Listening(ThreadingHTTPServer):
            def handle_error(self, *_):
                """Clients that go away in the midst of an answer are part of the tests."""

        self._server = Listening(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def statuses(self):
        return [arrival.status for arrival in self.arrivals]

    def _answer(self, headers):
        with self._lock:
            answer = self.answers.popleft() if self.answers else self._by_bucket()
            self.arrivals.append(Arrival(time.time(), headers, answer[0]))
        self.came.release()
        self.gate.wait(20)
        return answer

    def _by_bucket(self):
        if self._rate is None:
            return OK
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._seen) * self._rate)
        self._seen = now
        if self._tokens < 1:
            return THROTTLED
        self._tokens -= 1
        return OK

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
