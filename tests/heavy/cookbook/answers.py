"""The answers of the SDKs' servers, by the end of the path."""

from __future__ import annotations

import json

from ...adapters.http.server import Arrival, Reply
from ...llm.model import CHAT, RESPONSE

COHERE = {
    "id": "1",
    "finish_reason": "COMPLETE",
    "message": {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
}
GEMINI = {"candidates": [{"content": {"role": "model", "parts": [{"text": "yes"}]}}]}
SHEET = {"spreadsheetId": "some", "properties": {"title": "some"}, "sheets": []}
CUSTOMERS = {"object": "list", "data": [], "has_more": False, "url": "/v1/customers"}
OUTPUT = [
    {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "yes", "annotations": []}],
    }
]

ANSWERS = {
    "/chat/completions": CHAT,
    "/v2/chat": COHERE,
    ":generateContent": GEMINI,
    "/api/models/some": {"id": "some"},
    "/v4/spreadsheets/some": SHEET,
    "/v1/customers": CUSTOMERS,
    "/responses": {**RESPONSE, "output": OUTPUT},
}
HEADERS = {"Content-Type": "application/json", "Connection": "close"}
"""Clients keep no connection: they would have to close it in time, on the loop on which it was opened."""


def answer(arrival: Arrival) -> Reply:
    path = arrival.path.partition("?")[0]
    content = next((content for end, content in ANSWERS.items() if path.endswith(end)), None)
    assert content, arrival.path
    return Reply(200, HEADERS, json.dumps(content).encode())


def refusal(arrival: Arrival) -> Reply:
    """A 429 that holds for seven seconds."""
    return Reply(429, {**HEADERS, "Retry-After": "7"}, b'{"message": "slow down"}')
