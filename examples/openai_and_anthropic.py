"""The SDKs of OpenAI and Anthropic keep to a rate, and wait when the server says so. Run it: it needs both.

It needs no API key: it brings a stub server that answers in place of both.
"""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic
import openai

from shapekit.integrations.httpx2 import shape

WORKERS = 4
REFUSED = 2
"""The number of the request that the server refuses, counted from 1."""


def ask_openai(url: str) -> list[str | None]:
    """Threads share a client that is shaped where it is made. The calls themselves mention no limits."""
    http_client = shape(openai.DefaultHttpx2Client(), rate="5/s")
    with openai.OpenAI(
        api_key="none", base_url=f"{url}/v1", http_client=http_client, max_retries=2
    ) as client:

        def work(number: int) -> str | None:
            message: Any = {"role": "user", "content": f"question {number}"}
            answer = client.chat.completions.create(model="some", messages=[message])
            return answer.choices[0].message.content

        with ThreadPoolExecutor(WORKERS) as workers:
            return list(workers.map(work, range(WORKERS)))


async def ask_anthropic(url: str) -> list[str]:
    """The same with tasks."""
    http_client = shape(anthropic.DefaultAsyncHttpxClient(), rate="5/s")
    async with anthropic.AsyncAnthropic(
        api_key="none", base_url=url, http_client=http_client, max_retries=2
    ) as client:

        async def work(number: int) -> str:
            message: Any = {"role": "user", "content": f"question {number}"}
            answer = await client.messages.create(model="some", max_tokens=10, messages=[message])
            return "".join(block.text for block in answer.content if block.type == "text")

        return await asyncio.gather(*[work(number) for number in range(WORKERS)])


ANSWERS: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "some",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
        ],
    },
    "/v1/messages": {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "some",
        "content": [{"type": "text", "text": "yes"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}


class Stub(BaseHTTPRequestHandler):
    """A server that prints when requests arrive, and refuses one request of each SDK."""

    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    arrivals: dict[str, list[float]] = {path: [] for path in ANSWERS}  # noqa: RUF012 - all handlers share it

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with Stub.lock:
            arrivals = Stub.arrivals[self.path]
            arrivals.append(time.monotonic())
            status = 429 if len(arrivals) == REFUSED else 200
            again = " (the SDK tries again)" if self.headers["x-stainless-retry-count"] != "0" else ""
            print(f"  {arrivals[-1] - arrivals[0]:5.2f} s  {status}{again}", flush=True)
        body = json.dumps(ANSWERS[self.path] if status == 200 else {}).encode()
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Print nothing more."""


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        print(f"five a second for {WORKERS} threads with OpenAI; the second request is refused for a second:")
        print(f"answers: {ask_openai(url)}")
        print(
            f"five a second for {WORKERS} tasks with Anthropic; the second request is refused for a second:"
        )
        print(f"answers: {asyncio.run(ask_anthropic(url))}")
        server.shutdown()


if __name__ == "__main__":
    main()
