"""Errors as clients raise them, with a known cost."""


class RefusedByServer(Exception):
    """The error of an SDK for a failed answer: it carries the response."""

    def __init__(self, status_code, headers=()):
        super().__init__(status_code)
        self.response = Response(status_code, headers)


class Response:
    def __init__(self, status_code, headers=()):
        self.status_code = status_code
        self.headers = dict(headers)


def caused(cause):
    """A client's own error, which wraps the one that it comes from."""
    error = RuntimeError("connection error")
    error.__cause__ = cause
    return error
