"""What a store leaves behind: sockets and threads of this process."""

import gc
import os
import stat
import threading


def sockets():
    """How many sockets this process has open."""
    count = 0
    for fd in range(1_024):
        try:
            count += stat.S_ISSOCK(os.fstat(fd).st_mode)
        except OSError:
            continue
    return count


def threads():
    """The threads that are not the proxy's."""
    return {thread for thread in threading.enumerate() if thread.name != "proxy"}


class Leftovers:
    """Sockets and threads from before a test; all others must be gone after it."""

    def __init__(self):
        gc.collect()
        self._sockets = sockets()
        self._threads = threads()

    @property
    def sockets(self):
        return sockets() - self._sockets

    @property
    def threads(self):
        return threads() - self._threads
