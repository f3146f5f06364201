"""The map of a cluster: which of its servers has a key, whom to doubt, and where to go on to."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeAlias

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)

REDIRECTIONS_AT_MOST = 5
REFRESH_PAUSE_S = 1.0
"""How often a cluster whose servers fail is asked how it stands now."""
_DOUBTFUL = (MovedError, ClusterDownError, TryAgainError, ReadOnlyError)

Step: TypeAlias = "tuple[Any, bool] | None"
"""A server to send a command to, and whether to begin with ASKING; or None: read the map again."""
Route: TypeAlias = Generator[Step, Any, Any]
"""Yields steps and is sent what came of each: a reply, or an error."""


class Map:
    """What a cluster's client knows of the servers, and which of them not to believe.

    Only for a key of a doubted server is the map read again: what happens to one shard costs the keys
    of the others nothing.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._doubted: set[str] = set()
        self._read_at = -REFRESH_PAUSE_S

    def route(self, command: tuple[Any, ...]) -> Route:
        """The way of a command: to the server that has its key, and on to where that one sends it."""
        node = yield from self._owner(key_of(command))
        reply, asking = None, False
        for _ in range(REDIRECTIONS_AT_MOST):
            reply = yield node, asking
            if not isinstance(reply, Exception):
                return reply
            if isinstance(reply, _DOUBTFUL) or not isinstance(reply, ResponseError):
                self._doubted.add(node.name)
            if not isinstance(reply, ResponseError):
                raise reply
            if not isinstance(reply, AskError):
                return reply
            asking = not isinstance(reply, MovedError)
            node = yield from self._named(reply)
        return reply

    def server_of(self, key: bytes) -> str | None:
        """The name of the server that has this key, as far as is known."""
        node = self._known(key)
        return None if node is None else str(node.name)

    def _owner(self, key: bytes) -> Route:
        node = self._known(key)
        if (node is None or node.name in self._doubted) and self._is_due():
            self._doubted.clear()
            failure = yield None
            if failure is not None and node is not None:
                self._doubted.add(node.name)
            node = self._known(key)
        if node is None:
            raise SlotNotCoveredError("no server of the cluster has this key")
        return node

    def _named(self, reply: AskError) -> Route:
        """The server that a reply names, which may be new."""
        node = self._client.get_node(host=reply.host, port=reply.port)
        if node is None:
            yield None
            node = self._client.get_node(host=reply.host, port=reply.port)
        if node is None:
            raise SlotNotCoveredError(f"the cluster does not say who {reply.host}:{reply.port} is")
        return node

    def _known(self, key: bytes) -> Any:
        try:
            return self._client.get_node_from_key(key)
        except SlotNotCoveredError:
            return None

    def _is_due(self) -> bool:
        if time.monotonic() - self._read_at < REFRESH_PAUSE_S:
            return False
        self._read_at = time.monotonic()
        return True


def key_of(command: tuple[Any, ...]) -> bytes:
    """The key that decides where a command goes: behind the script and the count of keys, or first."""
    key: bytes = command[3] if command[0] in ("EVALSHA", "EVAL") else command[1]
    return key
