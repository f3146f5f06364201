"""Fixtures that these tests share with the tests of what all clients share."""

from ...adapters.http.conftest import both, left, server

__all__ = ["both", "left", "server"]
