"""A stub of both servers, for the transports of their SDKs: answers, streams and refusals."""

import json

import httpx2


def event(data, name=None):
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "some"}
CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60}
CHAT = {
    "id": "1", "object": "chat.completion", "created": 0, "model": "some", "usage": CHAT_USAGE,
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}],
}  # fmt: skip
RESPONSE = {
    "id": "r", "object": "response", "created_at": 0, "model": "some", "output": [], "tools": [],
    "parallel_tool_calls": True, "tool_choice": "auto", "status": "completed",
    "usage": {"input_tokens": 36, "output_tokens": 87, "total_tokens": 123,
              "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
}  # fmt: skip
MESSAGE = {
    "id": "m", "type": "message", "role": "assistant", "model": "some", "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "yes"}],
    "usage": {"input_tokens": 12, "output_tokens": 6, "cache_read_input_tokens": 5_000,
              "cache_creation_input_tokens": 30},
}  # fmt: skip
EMBEDDING = {
    "object": "list", "model": "some", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
    "usage": {"prompt_tokens": 8, "total_tokens": 8},
}  # fmt: skip


def chat_stream(request):
    yield from (
        event({**CHUNK, "usage": None, "choices": [{"index": 0, "delta": {"content": text}}]})
        for text in "ab"
    )
    if (request.get("stream_options") or {}).get("include_usage"):
        yield event({**CHUNK, "choices": [], "usage": CHAT_USAGE})
    yield event("[DONE]")


def response_stream(request):
    started = {**RESPONSE, "status": "in_progress", "usage": None}
    for number, (kind, response) in enumerate([("created", started), ("completed", RESPONSE)]):
        content = {"type": f"response.{kind}", "sequence_number": number, "response": response}
        yield event(content, content["type"])


def message_stream(request):
    usage = {"input_tokens": 12, "cache_creation_input_tokens": 30, "output_tokens": 1}
    started = {**MESSAGE, "content": [], "stop_reason": None, "usage": usage}
    for content in (
        {"type": "message_start", "message": started},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "yes"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 6}},
        {"type": "message_stop"},
    ):
        yield event(content, content["type"])


ANSWERS = {
    "/v1/chat/completions": (CHAT, chat_stream),
    "/v1/responses": (RESPONSE, response_stream),
    "/v1/messages": (MESSAGE, message_stream),
    "/v1/embeddings": (EMBEDDING, None),
}


class Model:
    """Answers every request with its current headers and status."""

    def __init__(self):
        self.status = 200
        self.headers = {}
        self.refusal = {}
        self.requests = []

    def __call__(self, request):
        payload = json.loads(request.content)
        self.requests.append(payload)
        if self.status != 200:
            return httpx2.Response(self.status, headers=self.headers, json=self.refusal)
        answer, stream = ANSWERS[request.url.path]
        if payload.get("stream"):
            headers = {**self.headers, "content-type": "text/event-stream"}
            return httpx2.Response(200, headers=headers, content=b"".join(stream(payload)))
        return httpx2.Response(200, headers=self.headers, json=answer)
