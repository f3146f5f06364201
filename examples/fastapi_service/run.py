"""Shows the service in `app.py`. Run it: it starts a stub of the API and uvicorn, and stops them again.

It needs fastapi, uvicorn and httpx.
"""

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue

import httpx

AT_ONCE, LATER = 30, 10


class Stub(BaseHTTPRequestHandler):
    """The API: it records the requests."""

    protocol_version = "HTTP/1.1"
    served = SimpleQueue[str]()

    def do_GET(self) -> None:
        body = b'{"price": 1}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        Stub.served.put(self.path)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Print nothing: `show` prints a summary."""


async def ask(url: str) -> list[httpx.Response]:
    """Send all requests at once, as on a busy day."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        return await asyncio.gather(*[client.get(f"/quotes/{number}") for number in range(AT_ONCE)])


def started(service: "subprocess.Popen[str]") -> str:
    """The address that uvicorn reports."""
    assert service.stderr is not None
    for line in service.stderr:
        if found := re.search(r"running on (http://[\d.:]+)", line):
            return found[1]
    raise SystemExit("the service did not start")


def show(url: str) -> None:
    answers = asyncio.run(ask(url))
    statuses = Counter(answer.status_code for answer in answers)
    later = sorted({answer.headers["Retry-After"] for answer in answers if answer.status_code == 503})
    print(f"{AT_ONCE} asked at once: {statuses[200]} answered, {statuses[503]} times 503")
    print(f"Retry-After: {', '.join(later)}")

    start = time.monotonic()
    answer = httpx.post(f"{url}/refresh", json=[str(number) for number in range(LATER)])
    print(f"{LATER} to be refreshed: {answer.status_code} after {time.monotonic() - start:.3f} s")
    served = [Stub.served.get(timeout=30) for _ in range(statuses[200] + LATER)]
    print(f"all of them were fetched after {time.monotonic() - start:.1f} s")
    print(f"the API has seen {len(served) + Stub.served.qsize()} calls")


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        service = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "app:app", "--port", "0"],
            cwd=Path(__file__).parent,
            env={**os.environ, "UPSTREAM": f"http://127.0.0.1:{server.server_port}"},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        try:
            show(started(service))
        finally:
            service.terminate()
            service.communicate()
            server.shutdown()


if __name__ == "__main__":
    main()
