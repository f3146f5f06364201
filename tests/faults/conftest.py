"""What the fault tests share: servers to be harmed, a proxy before one, and how long a failure may take."""

import time
from itertools import count

import pytest

from shapekit import GCRA, Gate, RedisStore, StoreUnavailableError

from ..redis_server import RedisServer, shared_server
from ..witness import Stopwatch
from .leftovers import Leftovers
from .proxy import Proxy

PATIENCE_S = 20.0
"""Longer than any event takes: reached only where a test fails."""
TIMEOUT_S = 1.0
PROMPT_S = 5.0
"""A call that may take TIMEOUT_S at most has surely ended by then, on any machine; one that hangs has not."""
BURST = 10

_fresh = count()


@pytest.fixture
def server():
    """A server that a test may harm."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy():
    """A proxy before the shared server."""
    proxy = Proxy(shared_server().port)
    yield proxy
    proxy.close()


@pytest.fixture
def prefix():
    """Keys of one test."""
    return f"fault{next(_fresh)}"


@pytest.fixture
def hasty():
    """The URL of a server or proxy, with a short timeout."""

    def hasty(where):
        base = where.url() if callable(where.url) else where.url
        return f"{base}?socket_timeout={TIMEOUT_S}&socket_connect_timeout={TIMEOUT_S}"

    return hasty


@pytest.fixture
def open_store(hasty, prefix):
    """Opens hasty stores; closes them at the end."""
    opened = []

    def open_store(where, **options):
        store = RedisStore.from_url(hasty(where), prefix=prefix, **options)
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def gate_on():
    """A gate that admits ten calls a day, so that each call that was charged is seen for as long."""

    def gate_on(store, name="gate"):
        return Gate(GCRA("10/d"), store=store, name=name)

    return gate_on


@pytest.fixture
def admitted(prefix, gate_on):
    """How many calls a gate has admitted, as a direct look at the server shows."""

    def admitted(server=None, name="gate", key="default"):
        store = RedisStore.from_url((server or shared_server()).url, prefix=prefix)
        try:
            return BURST - gate_on(store, name).peek(key).remaining
        finally:
            store.close()

    return admitted


@pytest.fixture
def promptly():
    """Expects StoreUnavailableError, within the timeouts."""

    def promptly(call, *args, **options):
        with Stopwatch() as watch, pytest.raises(StoreUnavailableError) as caught:
            call(*args, **options)
        assert watch.took < PROMPT_S
        return caught.value

    return promptly


@pytest.fixture
def apromptly():
    """The same for a coroutine."""

    async def apromptly(call, *args, **options):
        with Stopwatch() as watch, pytest.raises(StoreUnavailableError) as caught:
            await call(*args, **options)
        assert watch.took < PROMPT_S
        return caught.value

    return apromptly


@pytest.fixture
def leftovers():
    """Sockets and threads that a test leaves behind."""
    return Leftovers()


@pytest.fixture
def until():
    """Waits for what a thread or a server is about to do."""

    def until(happened):
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.002)

    return until
