"""What the tests of scopes share: virtual time, and a server that has scopes."""

import pytest

from shapekit import ManualClock

from .scoped_servers import GitHub


@pytest.fixture
def clock():
    """It begins at zero: what is left is what has passed."""
    return ManualClock(autojump=True)


@pytest.fixture
def github(clock):
    return GitHub(clock)
