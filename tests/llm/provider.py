"""A loopback server that answers as OpenAI does, and counts: beyond its limits of requests or tokens, a 429.

It counts strictly, over a sliding window, and a refused call costs nothing. Its answers are as long as the
request allows, three letters to a token.
"""

import json
import math
import time
from collections import deque
from typing import NamedTuple

from ..loopback import LoopbackServer

WINDOW_S = 8.0
PER_WINDOW = 80_000
"""Tokens."""
REQUESTS_PER_WINDOW = 240
RETRY_AFTER_S = 2


class Arrival(NamedTuple):
    at: float
    tokens: int
    status: int


class Provider(LoopbackServer):
    """Counts arriving requests, and refuses those beyond its limits."""

    path = "/v1"

    def __init__(self, tokens=PER_WINDOW, requests=REQUESTS_PER_WINDOW, window_s=WINDOW_S):
        super().__init__()
        self.arrivals = []
        self.refuses_after_s = math.inf
        """The time after the first request at which one is refused with a Retry-After, whatever the count."""
        self._limits = tokens, requests
        self._window_s = window_s
        self._recent, self._spent = deque(), 0

    @property
    def refusals(self):
        return [arrival for arrival in self.arrivals if arrival.status == 429]

    def share(self, begin_s, end_s):
        """The share of the token limit that was used in a while after the first arrival."""
        first = self.arrivals[0].at
        served = sum(
            each.tokens for each in self.arrivals if each.status == 200 and begin_s <= each.at - first < end_s
        )
        return served / (self._limits[0] * (end_s - begin_s) / self._window_s)

    def answer(self, headers, body):
        status, fields, content = self._judged(json.loads(body))
        return status, {"Content-Type": "application/json", **fields}, json.dumps(content).encode()

    def _judged(self, request):
        texts = (
            [request["prompt"]] if "prompt" in request else [each["content"] for each in request["messages"]]
        )
        prompt = sum(map(len, texts)) // 3
        completion = request.get("max_completion_tokens", request.get("max_tokens"))
        tokens = prompt + completion
        with self.lock:
            now = time.monotonic()
            while self._recent and self._recent[0][0] <= now - self._window_s:
                self._spent -= self._recent.popleft()[1]
            is_held = bool(self.arrivals) and now >= self.arrivals[0].at + self.refuses_after_s
            most_tokens, most_requests = self._limits
            if is_held or self._spent + tokens > most_tokens or len(self._recent) >= most_requests:
                self.arrivals.append(Arrival(now, tokens, 429))
                if is_held:
                    self.refuses_after_s = math.inf
                headers = {"Retry-After": RETRY_AFTER_S} if is_held else {}
                return (
                    429,
                    headers,
                    {"error": {"message": "too many", "type": "tokens", "code": "rate_limit"}},
                )
            self._recent.append((now, tokens))
            self._spent += tokens
            self.arrivals.append(Arrival(now, tokens, 200))
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": tokens}
        message = {"role": "assistant", "content": "because"}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "text": "because"}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "some"}
        return 200, {}, {**answer, "choices": [choice], "usage": usage}
