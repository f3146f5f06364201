"""FileLock: one process at a time, by a file that is locked.

The system lets go of the lock when its process dies, however it dies. Where the system has no such locks
(Windows) this one locks nothing: what it guards has to be safe without it, and is only fairer with it.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from types import ModuleType

_fcntl: ModuleType | None
try:
    import fcntl as _fcntl
except ImportError:  # pragma: no cover - Windows
    _fcntl = None

_LOOK_S = 0.000_2
"""How often it is looked whether the lock is free; on average, so that no two keep step."""


PRIVATE = 0o600
"""The mode of what is made here: whatever the umask is, nobody but the owner reads or writes it."""


class FileLock:
    """Opens the file, which stays; `close` lets go too.

    A new one is for all who may use the file `of` which it is, or private where that is not there yet.
    """

    def __init__(self, path: str, of: str) -> None:
        try:
            self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE)
        except FileExistsError:
            self._fd = os.open(path, os.O_RDWR)
        else:
            with suppress(FileNotFoundError):
                os.chmod(path, os.stat(of).st_mode & 0o666)

    def acquire(self, patience_s: float) -> None:
        """Wait for the lock; TimeoutError if that takes too long."""
        if _fcntl is None:
            return
        gives_up = None
        while True:
            try:
                _fcntl.flock(self._fd, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
            except BlockingIOError:
                now = time.monotonic()
                if gives_up is None:
                    gives_up = now + patience_s
                elif now > gives_up:
                    raise TimeoutError from None
                time.sleep(random.uniform(0, 2 * _LOOK_S))  # noqa: S311 - no secret
            else:
                return

    def release(self) -> None:
        if _fcntl is not None:
            _fcntl.flock(self._fd, _fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)
