"""A loopback server that answers as OpenAI does: what `answers` holds, then with ten tokens for twenty."""

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
TOTAL = USAGE["total_tokens"]


def refused(status, **headers):
    """An answer without a model's: a status, and what its headers say."""
    return status, {name.replace("_", "-"): value for name, value in headers.items()}


class Server:
    def __init__(self):
        self.answers = deque()
        self.asked = []
        """The bodies of the requests."""
        self.gate = threading.Event()
        """Answers are given while it is set."""
        self.gate.set()
        self.came = threading.Semaphore(0)
        self.pieces = None
        """How many pieces of a stream are sent before the connection is lost, once `cut` is set."""
        self.cut = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(asked)
                answer = outer.answers.popleft() if outer.answers else (200, {})
                outer.came.release()
                outer.gate.wait(20)
                status, headers = answer
                body = _body(asked) if status == 200 else '{"error": {"message": "no"}}'
                self.send_response(status)
                kind = "text/event-stream" if body.startswith("data:") else "application/json"
                sent = {"Content-Type": kind, "Content-Length": len(body), **headers}
                for name, value in sent.items():
                    self.send_header(name, str(value))
                self.end_headers()
                if asked.get("stream") and outer.pieces is not None:
                    outer._stop(self, body)
                else:
                    self.wfile.write(body.encode())

            def log_message(self, *_):
                pass

        class Listening(ThreadingHTTPServer):
            def handle_error(self, *_):
                """Clients that go away in the midst of an answer are part of the tests."""

        self._server = Listening(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def _stop(self, handler, body):
        handler.wfile.write("".join(body.splitlines(keepends=True)[: 2 * self.pieces]).encode())
        self.cut.wait(20)
        handler.close_connection = True

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.gate.set()
        self.cut.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _body(asked):
    said = {"id": "1", "created": 1, "model": asked["model"]}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": "because"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return json.dumps({**said, "object": "chat.completion", "choices": [choice], "usage": USAGE})
    said["object"] = "chat.completion.chunk"
    words = [
        {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None} for word in "abc"
    ]
    chunks = [
        {**said, "choices": [each]} for each in (*words, {"index": 0, "delta": {}, "finish_reason": "stop"})
    ]
    if (asked.get("stream_options") or {}).get("include_usage"):
        chunks.append({**said, "choices": [], "usage": USAGE})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
