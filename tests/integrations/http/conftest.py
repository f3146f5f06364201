"""What these tests share with those of what all clients share."""

from ...adapters.http.conftest import both, left, server

__all__ = ["both", "left", "server"]
