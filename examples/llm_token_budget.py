"""Limits on requests and tokens: each call reserves an estimate, and settles what it has used.

Run it: it brings a stub of a language model, and needs nothing else. Four threads share 600 requests and
60,000 tokens a minute.
"""

import json
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from shapekit import LLMBudget

WORKERS, CALLS = 4, 32
MAX_TOKENS = 980
PROMPT_TOKENS = 20
CAPACITY = 6_000

# Calls in flight are reserved in full, so the bucket holds more than an estimate for each worker: with less
# they would wait for each other's estimates, and not for the limit. It is small here, to show its effect.
budget = LLMBudget(requests="600/min", tokens="60k/min", capacity=CAPACITY, tokens_per_day="2M")


class Answered(NamedTuple):
    """What a call had reserved, what it used, and how long it waited."""

    reserved: int
    used: int
    waited: float


def ask(url: str, prompt: str) -> Answered:
    """One call: reserves the most that it can use, and settles what it has used."""
    with budget.admit((PROMPT_TOKENS, MAX_TOKENS)) as call:
        body = json.dumps({"prompt": prompt, "max_tokens": MAX_TOKENS}).encode()
        with urllib.request.urlopen(url, data=body) as response:
            answer = json.load(response)
        call.settle(answer)  # other calls can use the rest at once
    return Answered(call.reserved.total, answer["usage"]["total_tokens"], call.delay)


class Stub(BaseHTTPRequestHandler):
    """A model that never uses all the tokens that it may, and counts those that it does."""

    lock = threading.Lock()
    requests = tokens = 0

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Stub.lock:
            Stub.requests += 1
            used = PROMPT_TOKENS + Stub.requests * 37 % 400
            assert used <= question["max_tokens"]
            Stub.tokens += used
        body = json.dumps({"text": "…", "usage": {"total_tokens": used}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Print nothing: `main` prints a summary."""


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        prompts = [f"question {number:2}: ".ljust(80, "?") for number in range(CALLS)]
        start = time.monotonic()
        with ThreadPoolExecutor(WORKERS) as workers:
            answered = list(workers.map(ask, [url] * CALLS, prompts))
        took = time.monotonic() - start
        server.shutdown()
    reserved, used = sum(one.reserved for one in answered), sum(one.used for one in answered)
    unsettled = (reserved - CAPACITY) / 1_000
    (day,) = budget.quotas()
    print(f"{CALLS} calls by {WORKERS} threads in {took:.1f} s")
    print(f"reserved {reserved} tokens, used {used}; the server counted {Stub.tokens} in {Stub.requests}")
    print(f"the longest wait was {max(one.waited for one in answered):.2f} s")
    print(f"of the day's tokens {day.used} are charged")
    print(f"had nothing been settled, it would have taken {unsettled:.1f} s")


if __name__ == "__main__":
    main()
