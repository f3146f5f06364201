"""An MCP server on loopback, over streamable HTTP and over SSE."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer

PATIENCE_S = 20.0


class Tools:
    """Records when each request left, and refuses the request of that number."""

    def __init__(self, now: Callable[[], float]) -> None:
        server = MCPServer("tools")
        server.tool()(add)
        self._apps = {"/mcp": server.streamable_http_app(json_response=True)}
        self._by_sse = server.sse_app()
        self._now = now
        self.left: list[float] = []
        self.refused: int | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self, log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = self._apps.get(scope.get("path", "/mcp"), self._by_sse)
        if scope["type"] == "http":
            self.left.append(self._now())
        if scope["type"] != "http" or len(self.left) != self.refused:
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 429, "headers": [(b"retry-after", b"7")]})
        await send({"type": "http.response.body"})

    def start(self) -> Tools:
        self._thread.start()
        return self

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._socket.close()


def add(one: int, other: int) -> int:
    """The sum."""
    return one + other
