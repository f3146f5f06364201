"""A loopback server that answers as OpenAI does: first the items of `answers`, then ten tokens for twenty."""

import json
import threading
from collections import deque

from ...loopback import PATIENCE_S, LoopbackServer

USAGE = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
TOTAL = USAGE["total_tokens"]


def refused(status, **headers):
    """An answer other than a completion: a status, and its headers."""
    return status, {name.replace("_", "-"): value for name, value in headers.items()}


class Server(LoopbackServer):
    path = "/v1"

    def __init__(self):
        super().__init__()
        self.answers = deque()
        self.requests = []
        """The bodies of the requests."""
        self.pieces = None
        """How many pieces of a stream are sent before the connection is lost, once `cut` is set."""
        self.cut = threading.Event()
        self.usage = USAGE
        """The usage in answers."""
        self.unasked = None
        """The usage that streams contain without the option that requests it."""

    def answer(self, headers, body):
        request = json.loads(body)
        self.requests.append(request)
        status, fields = self.answers.popleft() if self.answers else (200, {})
        content = (
            _body(request, self.usage, self.unasked) if status == 200 else '{"error": {"message": "no"}}'
        )
        kind = "text/event-stream" if content.startswith("data:") else "application/json"
        return status, {"Content-Type": kind, **fields}, content.encode()

    def send(self, handler, body):
        if self.pieces is None or not body.startswith(b"data:"):
            super().send(handler, body)
            return
        super().send(handler, b"".join(body.splitlines(keepends=True)[: 2 * self.pieces]))
        self.cut.wait(PATIENCE_S)
        handler.close_connection = True

    def __exit__(self, *_):
        self.cut.set()
        super().__exit__()


def _body(request, usage_, unasked):
    answer = {"id": "1", "created": 1, "model": request["model"]}
    if not request.get("stream"):
        message = {"role": "assistant", "content": "because"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return json.dumps({**answer, "object": "chat.completion", "choices": [choice], "usage": usage_})
    answer["object"] = "chat.completion.chunk"
    words = [
        {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None} for word in "abc"
    ]
    chunks = [
        {**answer, "choices": [each]} for each in (*words, {"index": 0, "delta": {}, "finish_reason": "stop"})
    ]
    usage = usage_ if (request.get("stream_options") or {}).get("include_usage") else unasked
    if usage is not None:
        chunks.append({**answer, "choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
