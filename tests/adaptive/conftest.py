"""What these tests share with the integration tests: processes, and a place of their own on the server."""

from ..integration.conftest import prefix, script

__all__ = ["prefix", "script"]
