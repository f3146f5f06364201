"""The least HTTP server, in a process of its own: `python http_server.py`.

Prints its port, and ends with its input. It gives one answer to every request, without reading it: the client
is measured.
"""

import asyncio
import sys

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"
END = b"\r\n\r\n"


class Answering(asyncio.Protocol):
    """Answers once for each end of a head; requests here have no body."""

    def connection_made(self, transport):
        self.transport = transport
        self.tail = b""

    def data_received(self, data):
        *heads, self.tail = (self.tail + data).split(END)
        self.transport.write(REPLY * len(heads))


async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
