"""A forwarder between a client and a server, which can harm the reply to the next script call."""

import select
import socket
import threading
from contextlib import suppress

PATIENCE_S = 20.0
_SCRIPTS = (b"EVALSHA", b"EVAL\r\n")
_CHUNK = 65_536


class Proxy:
    """Forwards TCP to a port of this host, one thread for each connection.

    `strike(harm)` harms the replies to the next `times` script calls; the server has run them all:

    - "cut": half of the reply comes, then the connection is closed.
    - "drop": the connection is closed instead of the reply.
    - "swallow": no reply, and the connection stays.
    - "hold": the reply comes after a `release()` of its own.

    `refuse()` closes whatever is open and refuses what comes, until `accept()`.
    """

    def __init__(self, target_port):
        self._target = ("127.0.0.1", target_port)
        self._lock = threading.Lock()
        self._harms = []
        self._open = set()
        self._threads = []
        self._releases = threading.Semaphore(0)
        self._listener = None
        self.scripts = 0
        """Script calls that were forwarded."""
        self.connections = 0
        """Connections that were ever made."""
        self.held = threading.Event()
        """A reply is being held."""
        self.holds = threading.Semaphore(0)
        """One for each reply that was ever held."""
        self._listener = _listening(0)
        self.port = self._listener.getsockname()[1]
        self.accept()

    def url(self, query=""):
        return f"redis://127.0.0.1:{self.port}/0{query}"

    def strike(self, harm, times=1):
        with self._lock:
            self.held.clear()
            self._harms += [harm] * times

    @property
    def pending(self):
        """Harms that no reply has met yet."""
        return len(self._harms)

    def spare(self):
        """Forget the harms that no reply has met yet."""
        with self._lock:
            self._harms.clear()

    def lead_to(self, port):
        """New connections lead to another server from now on."""
        self._target = ("127.0.0.1", port)

    def release(self, replies=1):
        self._releases.release(replies)

    def refuse(self):
        with self._lock:
            listener, self._listener = self._listener, None
            doomed = set(self._open)
        if listener is not None:
            # Wakes the thread in accept().
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for end in doomed:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept(self):
        if self._listener is None:
            self._listener = _listening(self.port)
        self._start(self._welcome, self._listener)

    def close(self):
        self.release(100)
        self.refuse()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    # inside

    def _start(self, job, *args):
        thread = threading.Thread(target=job, args=args, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _welcome(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(self._target, PATIENCE_S)
            except OSError:
                client.close()
                continue
            self._start(self._forward, client, server)

    def _forward(self, client, server):
        with client, server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            with suppress(OSError):
                self._pump(client, server)
            with self._lock:
                self._open -= {client, server}

    def _pump(self, client, server):
        harm = None
        while True:
            ready, _, _ = select.select([client, server], [], [])
            for end in ready:
                data = end.recv(_CHUNK)
                if not data:
                    return
                if end is client:
                    # What comes from now on, in one piece or in several, is the reply to this.
                    harm = self._harm_of(data)
                    server.sendall(data)
                    continue
                if harm == "drop":
                    return
                if harm == "cut":
                    client.sendall(data[: len(data) // 2])
                    return
                if harm == "hold":
                    self.held.set()
                    self.holds.release()
                    self._releases.acquire(timeout=PATIENCE_S)
                    harm = None
                if harm != "swallow":
                    client.sendall(data)

    def _harm_of(self, data):
        calls = sum(map(data.count, _SCRIPTS))
        if not calls:
            return None
        with self._lock:
            self.scripts += calls
            return self._harms.pop(0) if self._harms else None


def _listening(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener
