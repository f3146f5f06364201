"""Fixtures of the tests of the clients: a server on loopback, and processes full of callers."""

import httpx
import httpx2
import pytest

from shapekit.integrations import httpx as shaped_httpx
from shapekit.integrations import httpx2 as shaped_httpx2

from ...queue.scopes.conftest import github
from .server import Server

__all__ = ["github"]

collect_ignore = ["strict.py"]  # a program of its own, which imports as such


@pytest.fixture
def server():
    server = Server().start()
    yield server
    server.close()


@pytest.fixture(params=[(httpx, shaped_httpx), (httpx2, shaped_httpx2)], ids=["httpx", "httpx2"])
def both(request):
    """A client library, and its wrapper."""
    return request.param


@pytest.fixture
def left(server, clock):
    """When requests left, in virtual time, which stands still while they travel."""
    instants, answer = [], server.answer

    def noting(arrival):
        instants.append(clock.now())
        return answer(arrival)

    server.answer = noting
    server.say = lambda reply_to: setattr(
        server, "answer", lambda a: (instants.append(clock.now()), reply_to(a))[1]
    )
    return instants
