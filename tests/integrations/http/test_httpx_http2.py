"""HTTP/2 through the wrapper: many requests on one connection, each in its slot."""

import socket
import threading
from contextlib import suppress

import anyio
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from shapekit import ManualClock

PATIENCE_S = 20.0


class Http2Server:
    """Answers "ok" to every request, on any number of connections, which it counts."""

    def __init__(self):
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self):
        while True:
            connection, _ = self._listener.accept()
            with connection:
                if not self._talk(connection):
                    return

    def _talk(self, sock):
        link = H2Connection(H2Configuration(client_side=False))
        link.initiate_connection()
        spoken = False
        with suppress(ConnectionError):  # the client has gone
            while data := sock.recv(65_536):
                self.connections += not spoken
                spoken = True
                for event in link.receive_data(data):
                    if isinstance(event, RequestReceived):
                        link.send_headers(event.stream_id, [(":status", "200")])
                        link.send_data(event.stream_id, b"ok", end_stream=True)
                sock.sendall(link.data_to_send())
        return spoken

    def close(self):
        socket.create_connection(self._listener.getsockname()).close()  # an empty frame: the last one
        self._thread.join(PATIENCE_S)
        self._listener.close()


@pytest.fixture
def server():
    server = Http2Server()
    yield server
    server.close()


def test_requests_share_a_connection(both, server, anyio_backend):
    library, wrapper = both
    clock = ManualClock(autojump=True)
    answers = []

    async def call(client):
        response = await client.get(server.url)
        answers.append((response.http_version, response.text))

    async def work():
        transport = wrapper.ShapedTransport(rate="10/s", clock=clock, http1=False, http2=True)
        async with library.AsyncClient(transport=transport) as client, anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(call, client)

    anyio.run(work, backend=anyio_backend)
    assert answers == [("HTTP/2", "ok")] * 5
    assert clock.now() == 0.4
    assert server.connections == 1


def test_a_single_request(both, server):
    library, wrapper = both
    with library.Client(transport=wrapper.ShapedTransport(rate=1, http1=False, http2=True)) as client:
        response = client.get(server.url)
    assert (response.http_version, response.text) == ("HTTP/2", "ok")
