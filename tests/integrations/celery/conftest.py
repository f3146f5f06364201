"""Fixtures of the tests of Celery: a broker for each module, and real workers on it."""

import uuid
from contextlib import closing

import pytest

from ...redis_server import RedisServer
from .apps import make_app
from .eager import Eager
from .fleet import Fleet
from .records import Records


@pytest.fixture(scope="module")
def broker():
    """A Redis that the tests of one module have for themselves: broker, results, store, and records."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def fleet(broker):
    """Starts workers: `fleet.start(module, pool=…, concurrency=…, options=[…], env={…})`."""
    with closing(Fleet(broker.url)) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def records(broker):
    """The records that tasks have written."""
    with broker.client(decode_responses=True) as client:
        yield Records(client)


@pytest.fixture
def account(request):
    """A key that no other test uses."""
    return f"{request.node.name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def app(broker):
    """The app of `apps.py`, to publish to."""
    app = make_app(broker.url)
    yield app
    app.close()


@pytest.fixture
def eager(clock):
    """Tasks without a worker, in virtual time."""
    return Eager(clock)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Print the logs of the workers when a test fails."""
    report = yield
    fleet = getattr(item, "funcargs", {}).get("fleet")
    if report.failed and fleet is not None:
        for number, worker in enumerate(fleet.workers, 1):
            report.sections.append((f"worker {number}", worker.log[-10_000:]))
    return report
