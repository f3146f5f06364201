"""ErrorsLogged: what fails after a call was made is logged, and replaces neither its answer nor its error."""

from __future__ import annotations

from types import TracebackType

from shapekit.errors import StoreUnavailableError

__all__ = ["ErrorsLogged", "log_failure"]


def log_failure(error: Exception, key: str, what: str, log: str = "shapekit.policy") -> None:
    """Log what has failed after a call of the user's."""
    import logging  # noqa: PLC0415 - only who has something to say loads it

    if isinstance(error, StoreUnavailableError):
        logging.getLogger(log).warning("key %r %s: %s", key, what, error)
    else:
        logging.getLogger(log).error("key %r %s: %s", key, what, error, exc_info=error)


class ErrorsLogged:
    """A context for what shapekit does after a call of the user's: it raises no Exception.

    A store that is gone is logged as a warning, everything else as a mistake, with its traceback. What is no
    Exception, such as an interrupt or a cancellation, goes on to the caller.
    """

    __slots__ = ("_key", "_log", "_what")

    def __init__(self, key: str, what: str, log: str = "shapekit.policy") -> None:
        self._key = key
        self._what = what
        self._log = log

    def __enter__(self) -> None:
        """Nothing has failed yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        log_failure(error, self._key, self._what, self._log)
        return True
