"""What the tests of events share: virtual time, who listens, and all ways of making a call."""

import pytest

from shapekit import ManualClock, Policy, listen

from .calls import WORLDS


@pytest.fixture
def clock():
    """Jumps by itself as soon as everybody sleeps."""
    return ManualClock(autojump=True)


@pytest.fixture
def heard():
    """Everything that is told in this process."""
    events = []
    with listen(events.append):
        yield events


@pytest.fixture(params=WORLDS, ids=lambda world: world.name)
def world(request):
    return request.param


@pytest.fixture
def policy(clock):
    """Ten a second."""
    return Policy("10/s", name="stripe", clock=clock)
