"""A loopback server that answers as OpenAI does: what `answers` holds, then with ten tokens for twenty."""

import json
import threading
from collections import deque

from ...loopback import PATIENCE_S, LoopbackServer

USAGE = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
TOTAL = USAGE["total_tokens"]


def refused(status, **headers):
    """An answer without a model's: a status, and what its headers say."""
    return status, {name.replace("_", "-"): value for name, value in headers.items()}


class Server(LoopbackServer):
    path = "/v1"

    def __init__(self):
        super().__init__()
        self.answers = deque()
        self.asked = []
        """The bodies of the requests."""
        self.pieces = None
        """How many pieces of a stream are sent before the connection is lost, once `cut` is set."""
        self.cut = threading.Event()
        self.usage = USAGE
        """The usage that answers tell."""
        self.unasked = None
        """The usage that streams tell without being asked."""

    def answer(self, headers, body):
        asked = json.loads(body)
        self.asked.append(asked)
        status, told = self.answers.popleft() if self.answers else (200, {})
        said = _body(asked, self.usage, self.unasked) if status == 200 else '{"error": {"message": "no"}}'
        kind = "text/event-stream" if said.startswith("data:") else "application/json"
        return status, {"Content-Type": kind, **told}, said.encode()

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


def _body(asked, told, unasked):
    said = {"id": "1", "created": 1, "model": asked["model"]}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": "because"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return json.dumps({**said, "object": "chat.completion", "choices": [choice], "usage": told})
    said["object"] = "chat.completion.chunk"
    words = [
        {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None} for word in "abc"
    ]
    chunks = [
        {**said, "choices": [each]} for each in (*words, {"index": 0, "delta": {}, "finish_reason": "stop"})
    ]
    usage = told if (asked.get("stream_options") or {}).get("include_usage") else unasked
    if usage is not None:
        chunks.append({**said, "choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
