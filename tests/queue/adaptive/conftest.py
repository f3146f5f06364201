"""What these tests share with the tests of processes: processes, and a place of their own on the server."""

from ...processes.conftest import prefix, script

__all__ = ["prefix", "script"]
