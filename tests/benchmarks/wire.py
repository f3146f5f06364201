"""Wire: stands between clients and a server, hands on what it is given, and counts it."""

from __future__ import annotations

import selectors
import socket
import threading
from typing import NamedTuple, Self


class Traffic(NamedTuple):
    """Traffic so far: round trips, over all connections, and bytes each way."""

    trips: int = 0
    sent: int = 0
    received: int = 0

    def since(self, before: Traffic) -> Traffic:
        """The traffic after that moment."""
        return Traffic(*(now - then for now, then in zip(self, before, strict=True)))


class Wire:
    """A port that leads to another one of this host.

    A trip begins when a client writes after the server has answered, so that many commands written at once
    are one, and so is a command that arrives in pieces.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._trips = self._sent = self._received = 0
        self._others: dict[socket.socket, socket.socket] = {}
        self._asking: set[socket.socket] = set()
        self._clients: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def traffic(self) -> Traffic:
        """The traffic so far. It contains the calls whose answers have arrived."""
        return Traffic(self._trips, self._sent, self._received)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._hand_on(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._target))
        self._clients.add(client)
        for one, other in ((client, server), (server, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _hand_on(self, one: socket.socket) -> None:
        if one not in self._others:
            return
        try:
            data = one.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._drop(one)
            return
        # Counted before it is passed on: a caller that has the answer finds it counted.
        if one in self._clients:
            self._sent += len(data)
            if one not in self._asking:
                self._asking.add(one)
                self._trips += 1
        else:
            self._received += len(data)
            self._asking.discard(self._others[one])
        try:
            self._others[one].sendall(data)
        except ConnectionError:
            self._drop(one)

    def _drop(self, one: socket.socket) -> None:
        for end in (one, self._others.pop(one)):
            self._others.pop(end, None)
            self._clients.discard(end)
            self._asking.discard(end)
            self._selector.unregister(end)
            end.close()

    def close(self) -> None:
        """Cut every connection."""
        self._wake.send(b"x")
        self._thread.join()
        for end in list(self._others):
            end.close()
        for end in (self._listener, self._wake, self._woken):
            end.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
