"""A loopback server that speaks SQS's protocol, and throttles as AWS does: by a token bucket."""

import json
import time
from collections import deque
from typing import NamedTuple

from ...loopback import LoopbackServer

OK = 200, {}, {}
THROTTLED = 400, {}, {"__type": "com.amazonaws.sqs#ThrottlingException", "message": "Rate exceeded"}


def failing(code, status=400, **headers):
    """An answer with an error code in its body."""
    return status, headers, {"__type": f"com.amazonaws.sqs#{code}", "message": "no"}


class Arrival(NamedTuple):
    at: float
    headers: dict
    status: int


class Server(LoopbackServer):
    """Answers what `answers` holds, then by its bucket if it has a rate: 200 or a ThrottlingException."""

    def __init__(self, rate=None, burst=1):
        super().__init__()
        self.answers = deque()
        self.arrivals = []
        self._rate, self._burst = rate, burst
        self._tokens, self._seen = burst, time.monotonic()

    @property
    def statuses(self):
        return [arrival.status for arrival in self.arrivals]

    def answer(self, headers, body):
        with self.lock:
            status, fields, content = self.answers.popleft() if self.answers else self._by_bucket()
            self.arrivals.append(Arrival(time.time(), headers, status))
        return status, {"Content-Type": "application/x-amz-json-1.0", **fields}, json.dumps(content).encode()

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
