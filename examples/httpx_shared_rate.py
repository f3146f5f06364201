"""Two processes share one rate, and wait together when the server says so. Run it: it needs httpx."""

import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from shapekit import SQLiteStore
from shapekit.integrations.httpx import ShapedTransport

CALLS = 6
REFUSED = 5
"""The number of the request that the server refuses, counted from 1."""


def work(name: str, url: str, path: str) -> None:
    """One worker: a client with a store that all workers share. The calls themselves mention no limits."""
    store = SQLiteStore(path)
    with httpx.Client(transport=ShapedTransport(rate="10/s", name="stub", store=store)) as client:
        for _ in range(CALLS):
            client.get(url, headers={"X-Worker": name})
    store.close()


class Stub(BaseHTTPRequestHandler):
    """A server that prints when requests arrive, and refuses one of them."""

    arrivals = 0
    start = time.monotonic()
    lock = threading.Lock()

    def do_GET(self) -> None:
        with Stub.lock:
            Stub.arrivals += 1
            status = 429 if Stub.arrivals == REFUSED else 200
            at = time.monotonic() - Stub.start if Stub.arrivals > 1 else 0.0
            if Stub.arrivals == 1:
                Stub.start = time.monotonic()
            print(f"  {at:5.2f} s  {self.headers['X-Worker']}  {status}", flush=True)
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Print nothing more."""


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        path = str(Path(folder) / "limits.db")
        print("ten a second for two processes together; the fifth request is refused for a second:")
        workers = [subprocess.Popen([sys.executable, __file__, name, url, path]) for name in ("anna", "bert")]
        statuses = [worker.wait() for worker in workers]
        server.shutdown()
    print(f"{Stub.arrivals} requests, workers ended with {statuses}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(*sys.argv[1:])
    else:
        main()
