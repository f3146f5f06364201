"""Eight workers retry calls to a failing server, within a rate and a budget. Run it: it needs tenacity."""

import threading
import urllib.error
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import tenacity

from shapekit import Policy
from shapekit.integrations.tenacity import retry_if_throttled, shaped_retrying, wait_retry_after

WORKERS, CALLS = 8, 5
BUDGET, RESERVE = 0.2, 4

upstream = Policy("40/s", name="stub")
retrying = shaped_retrying(
    upstream,
    budget=BUDGET,
    reserve=RESERVE,
    retry=retry_if_throttled() | tenacity.retry_if_exception_type(ConnectionError),
    wait=wait_retry_after(tenacity.wait_random_exponential(multiplier=0.05, max=1)),
)


@retrying.wraps
def fetch(url: str) -> int:
    """One call. Its exception carries the server's response, which shapekit reads to decide about a retry."""
    with urllib.request.urlopen(url) as response:
        return int(response.status)


class Stub(BaseHTTPRequestHandler):
    """A server that fails every other request, and with the tenth asks clients to wait for a second."""

    statuses: ClassVar[Counter[int]] = Counter()
    lock = threading.Lock()

    def do_GET(self) -> None:
        with Stub.lock:
            number = Stub.statuses.total() + 1
            status = 429 if number == 10 else 503 if number % 2 else 200
            Stub.statuses[status] += 1
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Print nothing: `main` prints a summary."""


def work(url: str, ended: Counter[str]) -> None:
    for _ in range(CALLS):
        try:
            fetch(url)
        except urllib.error.HTTPError as error:
            error.close()
            ended["failed"] += 1
        else:
            ended["done"] += 1


def main() -> None:
    ended: Counter[str] = Counter()
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        threads = [threading.Thread(target=work, args=(url, ended)) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.shutdown()
    calls, requests = ended.total(), Stub.statuses.total()
    print(f"{calls} calls: {ended['done']} done, {ended['failed']} failed with what the server said last")
    print(f"{requests} requests: {dict(sorted(Stub.statuses.items()))}")
    print(f"{requests - calls} retries, of at most {BUDGET:.0%} of the calls and {RESERVE} more")


if __name__ == "__main__":
    main()
