"""A server that is far away: a forwarder that lets everything take its time, each way."""

import heapq
import socket
import threading
import time
from contextlib import suppress

_CHUNK = 65_536


class FarAway:
    """Forwards TCP to a port of this host; whatever is sent arrives `delay_s` later, in order.

    `scripts` are the instants at which script calls went through.
    """

    def __init__(self, target_port, delay_s):
        self._target = ("127.0.0.1", target_port)
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._sockets = set()
        self._threads = []
        self.scripts = []
        self._due = []
        self._numbers = 0
        self._changed = threading.Condition()
        self._is_open = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._welcome)
        self._start(self._deliver)

    def url(self):
        return f"redis://127.0.0.1:{self.port}/0?socket_timeout=5"

    def close(self):
        with self._changed:
            self._is_open = False
            self._changed.notify()
        with self._lock:
            doomed = [self._listener, *self._sockets]
        for end in doomed:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def _start(self, job, *args):
        thread = threading.Thread(target=job, args=args, name="far away", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _welcome(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target, 20)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            self._start(self._carry, client, server)
            self._start(self._carry, server, client)

    def _carry(self, source, target):
        while True:
            try:
                data = source.recv(_CHUNK)
            except OSError:
                data = b""
            with self._changed:
                self.scripts += [time.monotonic()] * data.count(b"EVALSHA")
                self._numbers += 1
                heapq.heappush(self._due, (time.monotonic() + self._delay_s, self._numbers, target, data))
                self._changed.notify()
            if not data:
                return

    def _deliver(self):
        while True:
            with self._changed:
                while self._is_open and not self._due:
                    self._changed.wait()
                if not self._is_open:
                    return
                left_s = self._due[0][0] - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
                _, _, target, data = heapq.heappop(self._due)
            with suppress(OSError):
                if data:
                    target.sendall(data)
                else:
                    target.shutdown(socket.SHUT_WR)
