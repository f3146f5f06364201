"""The receiving server, whose API is called. The arrivals that it has seen are the history.

`python receiver.py` prints its port, records each call when it arrives, by the clock of the machine, and
prints all of them when its standard input ends.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 20.0


class Arrival(NamedTuple):
    """One call, as the server has seen it."""

    at: float
    """When it came, on the monotonic clock, which all processes of a machine share."""
    caller: int
    kind: str
    """The limit that it was admitted by."""
    due: float
    """When it was to leave, as far as its caller knows: a later arrival is no later admission."""


class Receiver:
    """The server as a process of its own."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([sys.executable, str(Path(__file__))], **pipes)
        self.port = int(self._process.stdout.readline())

    @property
    def pid(self):
        return self._process.pid

    def history(self):
        """All arrivals, in order; ends the server."""
        printed, _ = self._process.communicate(timeout=PATIENCE_S)
        return [Arrival(*seen) for seen in json.loads(printed)]

    def close(self):
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._process.stdin.close()
        self._process.stdout.close()


async def _serve():
    seen = []

    async def answer(reader, writer):
        try:
            while line := await reader.readline():
                at = time.monotonic()
                caller, kind, due = line.split()
                seen.append((at, int(caller), kind.decode(), float(due)))
                writer.write(b"\n")
        except ConnectionError:
            pass  # a caller that was killed
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    asyncio.run(_serve())
