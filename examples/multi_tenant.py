"""Each customer has the rate of their plan, and all together stay under the rate of our account.

Run it: it brings a stub of the API, and needs nothing else.
"""

import threading
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from shapekit import Policy, QueueFullError

PLAN_OF = {"anna": "pro", "bert": "free", "cleo": "free"}
CALLS, FLOOD = 6, 30

# Each key is counted separately: every customer of a plan has the plan's whole rate.
plans = {
    "free": Policy("5/s", name="free", max_wait="1s"),
    "pro": Policy("20/s", burst=3, name="pro", max_wait="5s"),
}
account = Policy("50/s", name="account")
"""What the API allows our account, for all customers together."""


def call(customer: str, url: str) -> float:
    """One call; returns how long it waited for the customer's own slot.

    The account's slot is taken last, right before the call, so that none is taken in vain.
    """
    with plans[PLAN_OF[customer]].admit(customer) as own, account.admit():
        request = urllib.request.Request(url, headers={"X-Customer": customer})
        urllib.request.urlopen(request).close()
    return own.delay


class Stub(BaseHTTPRequestHandler):
    """An API that counts the calls of each customer."""

    lock = threading.Lock()
    calls: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        with Stub.lock:
            Stub.calls[self.headers["X-Customer"]] += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Print nothing: `main` prints a summary."""


def work(customer: str, url: str) -> float:
    """Make one call after another; returns the longest wait."""
    return max([call(customer, url) for _ in range(CALLS)])


def flood(customer: str, url: str) -> Counter[str]:
    """Make far more calls at once than the plan allows: those that would wait too long are refused."""

    def attempt(_: int) -> str:
        try:
            call(customer, url)
        except QueueFullError:
            return "refused"
        return "answered"

    with ThreadPoolExecutor(FLOOD) as threads:
        return Counter(threads.map(attempt, range(FLOOD)))


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        print(f"{CALLS} calls for each of three customers, at once:")
        with ThreadPoolExecutor(len(PLAN_OF)) as threads:
            waits = list(threads.map(work, PLAN_OF, [url] * len(PLAN_OF)))
        for (customer, plan), wait in zip(PLAN_OF.items(), waits, strict=True):
            print(
                f"  {customer} ({plan}): {Stub.calls[customer]} calls, none waited longer than {wait:.3f} s"
            )
        ended = flood("bert", url)
        print(f"bert floods: {ended['answered']} of {FLOOD} answered, {ended['refused']} refused at once")
        ahead = [plans["free"].forecast(key=customer).first_in for customer in ("bert", "cleo")]
        print(f"bert's next call would wait {ahead[0]:.1f} s, cleo's {ahead[1]:.1f} s")
        server.shutdown()


if __name__ == "__main__":
    main()
